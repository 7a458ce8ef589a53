"""The vocabulary of the project: what can be seen of host pools and their registration.

Each event is a frozen dataclass and, by ``wire``, one JSON line of a journal. It is
self-sufficient: totals that need memory (bytes now held, registered bytes by address, failures
mended) were worked out by the ledger before the event was made, so that whoever folds events
needs no state of ours.

Sizes are bytes, durations seconds, times seconds since the epoch. ``call`` ties the entry of a
native call to the event that ends it. Addresses appear in events (for provenance after death)
and never in labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Event:
    kind: ClassVar[str]
    awaited: ClassVar[bool] = False
    """Whether the line must have left the process before SGLang goes on. The others are handed
    over: they are written after all earlier lines and before any later one, so the next awaited
    line covers them."""

    @property
    def durable(self) -> bool:
        """Whether the event must be on disk before SGLang goes on: every failure."""
        return False


@dataclass(frozen=True, kw_only=True)
class Outcome(Event):
    """What every event that ends something tells.

    *outcome* is ``success``, ``failure``, or ``interrupted`` where Ctrl-C or an exit passed
    through: that says nothing of HiCache.
    """

    outcome: str
    duration_s: float = 0.0
    error_type: str = ""
    error: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome == "failure"

    @property
    def durable(self) -> bool:
        return self.outcome != "success"


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """First line of a journal: which process this is. pid and time are shown, never trusted.

    *launch* is the same for all ranks of one server start (their common parent), *boottime_ns*
    the kernel's boot clock, by which runs of one boot are ordered; "" and 0 if not known.
    *host* is the Kubernetes node where there is one; *own_network* says that the pod has a network,
    and so ports, of its own there.
    """

    kind: ClassVar[str] = "run"
    awaited: ClassVar[bool] = True
    run: str
    boot_id: str
    pid: int
    host: str
    namespace: str = ""
    pod: str = ""
    obs_version: str = ""
    python_version: str = ""
    launch: str = ""
    boottime_ns: int = 0
    own_network: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerStarting(Event):
    """Second line of a journal: who this worker is. Ranks are "" where SGLang has none.

    *hicache*: whether this server keeps host pools; *mode*: that of the store it is configured
    for, "" if that is not Mooncake.
    """

    kind: ClassVar[str] = "worker_starting"
    awaited: ClassVar[bool] = True
    model_name: str
    engine_type: str
    tp_rank: str
    pp_rank: str
    dp_rank: str
    server_port: str
    node_rank: str
    nnodes: str
    extra_labels: dict[str, str]
    sglang_version: str
    mooncake_version: str
    torch_version: str
    hicache: bool
    storage_backend: str
    mode: str


@dataclass(frozen=True, kw_only=True)
class WorkerReady(Event):
    """``Scheduler.__init__`` returned: the worker is past HiCache start-up."""

    kind: ClassVar[str] = "worker_ready"
    awaited: ClassVar[bool] = True
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class WorkerFailed(Outcome):
    """``Scheduler.__init__`` raised. *stage* is "" where no HiCache failure led to it."""

    kind: ClassVar[str] = "worker_failed"
    stage: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class HooksReported(Event):
    """How the hook points of this release stand: names that it lacks are *missing*."""

    kind: ClassVar[str] = "hooks"
    installed: int
    pending: int
    missing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DraftBuilderReported(Event):
    """State of the draft host pool builder (design: hicache_draft_builder_info)."""

    kind: ClassVar[str] = "draft_builder"
    state: str
    before: str = ""
    asked: str = ""
    given: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CallEntered(Event):
    """A native call is about to run; the event with the same *call* says that it came back.

    Where the call takes memory (``allocate``, ``pin``): the memory limit with the fewest bytes
    left, what is used of it, and whose it is (``cgroup`` or ``host``); else 0 and "".
    """

    kind: ClassVar[str] = "call_entered"
    awaited: ClassVar[bool] = True
    call: int
    api: str
    role: str
    pool: str
    bytes: int
    since: float
    mode: str = ""
    allocator: str = ""
    limit_bytes: int = 0
    used_bytes: int = 0
    limit_source: str = ""


@dataclass(frozen=True, kw_only=True)
class CallReturned(Outcome):
    """A call came back that no other event ends (the store's warm-up, a transfer engine)."""

    kind: ClassVar[str] = "call_returned"
    call: int
    api: str
    role: str
    pool: str


@dataclass(frozen=True, kw_only=True)
class CallRefused(Outcome):
    """A native call failed; why is still being found out, and the event that ends it follows.

    It changes no metric. Should the process be killed meanwhile, this is what is known.
    """

    kind: ClassVar[str] = "call_refused"
    call: int
    api: str
    mode: str
    role: str
    pool: str
    allocator: str
    bytes: int
    code: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class AllocatorChosen(Event):
    """``get_allocator_from_storage`` answered. *reason* is "" unless it fell back."""

    kind: ClassVar[str] = "allocator"
    role: str
    pool: str
    requested: str
    actual: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class LimitSeen(Event):
    """A memory limit when the constructor of a host pool was entered, and what was free under it.

    *source*: ``psutil``, the host as SGLang's own size check reads it, ``cgroup``, and what that
    check does not see: ``hugetlb``, ``memlock``, ``numa`` (hooks/host_facts.py).
    """

    kind: ClassVar[str] = "limit"
    source: str
    limit_bytes: int
    free_bytes: int


@dataclass(frozen=True, kw_only=True)
class SegmentAllocated(Outcome):
    """An allocator's ``allocate`` came back."""

    kind: ClassVar[str] = "segment"
    call: int
    role: str
    pool: str
    allocator: str
    bytes: int
    address: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PagesPinned(Outcome):
    """A page-locking came back. *code* is the CUDA error number, "" if not told; *chunks* counts
    its ``cudaHostRegister`` calls. A failure that SGLang does not look at (0.5.11, 0.5.12) has
    no error: the pool stands and is pageable."""

    kind: ClassVar[str] = "pin"
    call: int
    role: str
    pool: str
    allocator: str
    bytes: int
    code: str
    pinned_bytes: int
    chunks: int = 1


@dataclass(frozen=True, kw_only=True)
class PoolFacts(Event):
    """A host pool, and the bytes and tokens now held by its role, pool and allocator."""

    pool_id: int
    role: str
    pool: str
    pool_class: str
    allocator: str
    requested_allocator: str
    layout: str
    dtype: str
    page_size: int
    draft_layers: int
    bytes: int
    tokens: int
    held_bytes: int
    held_tokens: int


@dataclass(frozen=True, kw_only=True)
class PoolBuilt(Outcome, PoolFacts):
    """A host pool's constructor came back.

    *reason* and *code* say why it failed (the code of a failed page-locking); *expected* is
    whether the pool should be registered, None if that is not known yet; *mended* lists the
    ``(mode, allocator, code, cause)`` of earlier failures of the pool that this success ends.
    """

    kind: ClassVar[str] = "pool"
    reason: str
    code: str
    mode: str
    expected: bool | None
    mended: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class PoolNamed(PoolFacts):
    """A pool that stands got another role or name by later evidence (the PoolName given in its
    group or at its registration), or it is alone now on memory that it shared. The release of
    its old name, or of the other pool, comes before."""

    kind: ClassVar[str] = "pool_named"
    mode: str
    expected: bool | None
    pinned_bytes: int
    registered_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class PoolReleased(PoolFacts):
    """A pool was destroyed, collected or renamed; the totals are what is left."""

    kind: ClassVar[str] = "pool_released"
    mode: str
    how: str
    registered_bytes: int
    pinned_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class MismatchSeen(Event):
    """A pool's allocator is not what it should be; known before the registration runs."""

    kind: ClassVar[str] = "mismatch"
    awaited: ClassVar[bool] = True
    role: str
    pool: str
    expected: str
    actual: str
    reason: str
    harmful: bool
    active: bool = True


@dataclass(frozen=True, kw_only=True)
class StoreSetUp(Outcome):
    """``MooncakeStore.__init__`` came back (set-up and warm-up included)."""

    kind: ClassVar[str] = "setup"
    call: int
    api: str
    backend: str
    mode: str
    protocol: str
    code: str
    cause: str
    mended: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TransportChosen(Event):
    """SGLang's transfer engine is initialized: the protocol asked for, and the one it uses."""

    kind: ClassVar[str] = "transport"
    requested: str
    actual: str


@dataclass(frozen=True, kw_only=True)
class BufferRegistered(Outcome):
    """One registration of one buffer came back.

    *registered_bytes* is the total by address for these labels; *mended* lists the
    ``(mode, allocator, code, cause)`` of earlier failures of the pool that this success ends.
    """

    kind: ClassVar[str] = "registration"
    call: int
    api: str
    mode: str
    role: str
    pool: str
    allocator: str
    bytes: int
    address: str
    code: str
    cause: str
    registered_bytes: int
    mended: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class BufferUnregistered(Event):
    """Buffers are registered no longer; *registered_bytes* is what is left for these labels."""

    kind: ClassVar[str] = "unregistration"
    mode: str
    role: str
    pool: str
    allocator: str
    bytes: int
    registered_bytes: int


@dataclass(frozen=True, kw_only=True)
class BackendAttached(Outcome):
    """``attach_storage_backend`` came back; *cause* is "" where an earlier event has told why it
    failed, or it did not."""

    kind: ClassVar[str] = "attach"
    backend: str
    cause: str
    mended: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class BackendDetached(Event):
    """The storage backend is gone: detached, or taken back after an attach that failed.

    *pools* lists ``(role, pool)`` that are expected no longer, *ended* the failures ``(stage,
    role, pool, mode, allocator, code, cause)`` that go with it.
    """

    kind: ClassVar[str] = "detach"
    backend: str
    mode: str
    protocol: str
    pools: tuple[tuple[str, str], ...]
    ended: tuple[tuple[str, str, str, str, str, str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class PoolRegistered(Outcome):
    """All buffers of a pool were handed to the store, or one of them failed."""

    kind: ClassVar[str] = "pool_registration"
    api: str
    mode: str
    role: str
    pool: str
    buffers: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class JournalLost(Event):
    """Events that could not be written in time or at all, since the last such line."""

    kind: ClassVar[str] = "journal_lost"
    lost: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class ObsError(Event):
    """Faults of our own at one place, since the last such line."""

    kind: ClassVar[str] = "obs_error"
    where: str
    count: int
    error: str = ""


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RunStarted,
        WorkerStarting,
        WorkerReady,
        WorkerFailed,
        HooksReported,
        DraftBuilderReported,
        CallEntered,
        CallReturned,
        CallRefused,
        AllocatorChosen,
        LimitSeen,
        SegmentAllocated,
        PagesPinned,
        PoolBuilt,
        PoolNamed,
        PoolReleased,
        MismatchSeen,
        StoreSetUp,
        TransportChosen,
        BufferRegistered,
        BufferUnregistered,
        PoolRegistered,
        BackendAttached,
        BackendDetached,
        JournalLost,
        ObsError,
    )
}
