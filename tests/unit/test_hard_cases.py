"""Hooks in bad company: what is told when the store, a name server, a thread or the user
misbehaves. Real observers over objects that have what is used of SGLang's."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hicache_obs import config, journal, recorder, runs, wire
from hicache_obs import events as ev
from hicache_obs import metrics as m
from hicache_obs.events import Event
from hicache_obs.hooks import allocators, mismatch, peer, standing
from hicache_obs.hooks.around import around
from hicache_obs.ledger import Segment
from hicache_obs.metrics import Metric
from hicache_obs.recorder import Recorder
from hicache_obs.updates import updates

REGISTER = around("register_buffer")
SIDE_POOL = around("register_side_pool")
POOL = around("host_pool")
DESTROY = around("pool_destroy")
PIN = around("pin")
STORE_INIT = around("store_init")
SCHEDULER = around("worker")
REFUSED = RuntimeError("Failed to register buffer to Mooncake Store, error code: -1")


class Tensor:
    def __init__(self, address: int = 1 << 20, size: int = 1000) -> None:
        self.address, self.size = address, size

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return 1


class Store:
    def __init__(self, address: str = "127.0.0.1:1", health: Callable[[], Any] = lambda: 0) -> None:
        self.config = SimpleNamespace(standalone_storage=True, client_server_address=address)
        self.store = SimpleNamespace(health_check=health)


class HostPool:
    """What is used of a host pool; *error* is raised by its construction."""

    def __init__(
        self, tensor: Tensor | None = None, error: BaseException | None = None, label: str = "kv"
    ) -> None:
        def build(pool: HostPool, pool_label: str = "") -> None:
            if error is not None:
                raise error
            pool.size, pool.pool_label = 10, pool_label
            pool.kv_buffer = tensor or Tensor()

        POOL(build, self, pool_label=label)

    size: int
    pool_label: str
    kv_buffer: Tensor


@pytest.fixture
def rec(settings: Callable[..., config.Config], monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder(settings())
    made.worker = replace(
        recorder.UNKNOWN_WORKER, hicache=True, storage_backend="mooncake", mode="standalone"
    )
    monkeypatch.setattr(recorder, "_recorder", made)
    return made


def told(rec: Recorder, *kinds: type[Event]) -> list[Any]:
    """The events in the journal, of these kinds."""
    rec.flush()
    assert rec.config.state_dir is not None
    path = runs.journal_path(rec.config.state_dir, rec._run.text)
    records = [r for r in journal.read(path) if isinstance(r, wire.Record)]
    return [r.event for r in records if not kinds or isinstance(r.event, kinds)]


def rows(rec: Recorder, metric: Metric) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for event in told(rec):
        for changed, labels, value in updates(event, 1.0):
            if changed is metric:
                found[labels] = value
    return found


def refuse(store: Store, tensor: Any, error: BaseException = REFUSED) -> None:
    def fail(*_: object) -> None:
        raise error

    with pytest.raises(type(error)):
        REGISTER(fail, store, tensor)


def sick() -> int:
    raise RuntimeError("client gone")


@pytest.mark.parametrize(
    "health", [sick, lambda: "?", lambda: None], ids=["raises", "text", "none"]
)
def test_a_store_that_cannot_tell_its_health_hides_no_failure(
    health: Callable[[], Any], rec: Recorder
) -> None:
    rec.ledger.add_segment(Segment(1 << 20, 1000, "mooncake", "target", "kv"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        refuse(Store(f"127.0.0.1:{port}", health), Tensor())
    (event,) = told(rec, ev.BufferRegistered)
    assert (event.outcome, event.code, event.cause) == ("failure", "-1", "ipc_or_remote_map")
    assert rec.blamed(REFUSED) == ("registration", "ipc_or_remote_map")


def test_a_fault_in_the_diagnosis_costs_only_the_cause(
    rec: Recorder, monkeypatch: pytest.MonkeyPatch, counted: Callable[[], dict[str, int]]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rec.ledger, "provenance", broken)
    refuse(Store(), Tensor())
    (event,) = told(rec, ev.BufferRegistered)
    assert (event.outcome, event.code, event.cause) == ("failure", "-1", "unknown")
    assert counted() == {"diagnose": 1}


class MuteError(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_exception_that_cannot_be_printed(rec: Recorder) -> None:
    error = MuteError()
    refuse(Store(), Tensor(), error)
    (event,) = told(rec, ev.BufferRegistered)
    assert (event.outcome, event.error_type, event.error) == ("failure", "MuteError", "")
    assert rec.blamed(error)[0] == "registration"


def test_what_is_known_is_in_the_journal_before_anybody_is_asked(
    rec: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec.ledger.add_segment(Segment(1 << 20, 1000, "mooncake", "target", "kv"))
    before: list[list[Any]] = []

    def ask(*_: object) -> tuple[None, bool]:
        before.append(told(rec, ev.CallRefused))
        return None, False

    monkeypatch.setattr(peer, "ask", ask)
    refuse(Store(), Tensor())
    ((refused,),) = before
    assert (refused.code, refused.cause, refused.bytes) == ("-1", "ipc_or_remote_map", 1000)
    (event,) = told(rec, ev.BufferRegistered)
    assert (event.call, event.cause) == (refused.call, "client_unreachable")


@pytest.mark.parametrize("where", ["names", "health"])
def test_nobody_is_waited_for_longer_than_a_moment(
    where: str, rec: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec.ledger.add_segment(Segment(1 << 20, 1000, "mooncake", "target", "kv"))
    go = threading.Event()
    address = "nowhere.example:1"
    if where == "names":
        monkeypatch.setattr(socket, "create_connection", lambda *_: go.wait(20))
    else:
        address = ""
    store = Store(address, lambda: go.wait(20))
    started = time.monotonic()
    refuse(store, Tensor())
    took = time.monotonic() - started
    go.set()
    assert took < 2 * peer.PATIENCE_S + journal.DEADLINE_S + 1
    (event,) = told(rec, ev.BufferRegistered)
    assert event.cause == "ipc_or_remote_map"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_is_no_failure_of_hicache(kind: type[BaseException], rec: Recorder) -> None:
    refuse(Store(), Tensor(), kind())
    with pytest.raises(kind):
        HostPool(error=kind())

    def stop(*_: object) -> None:
        raise kind

    with pytest.raises(kind):
        STORE_INIT(stop, Store())
    outcomes = {type(e).__name__: e.outcome for e in told(rec, ev.Outcome)}
    assert outcomes == {
        "BufferRegistered": "interrupted",
        "PoolBuilt": "interrupted",
        "StoreSetUp": "interrupted",
    }
    assert not [value for value in rows(rec, m.FAILURE_ACTIVE).values() if value]
    assert rows(rec, m.STORE_INFO) == {}
    assert rows(rec, m.POOL_INFO) == {}


def test_ctrl_c_in_the_scheduler_is_no_failed_start(rec: Recorder) -> None:
    def stop(_scheduler: object, server_args: object) -> None:
        raise KeyboardInterrupt

    args = SimpleNamespace(enable_hierarchical_cache=True)
    with pytest.raises(KeyboardInterrupt):
        SCHEDULER(stop, SimpleNamespace(), args)
    (event,) = told(rec, ev.WorkerFailed)
    assert (event.outcome, event.stage, event.cause) == ("interrupted", "", "")


def test_without_a_thread_only_the_journal_is_lost(
    rec: Recorder, monkeypatch: pytest.MonkeyPatch, counted: Callable[[], dict[str, int]]
) -> None:
    opened: list[ev.RunStarted] = []
    monkeypatch.setattr(rec, "_open_live", opened.append)

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    started = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        refuse(Store(), Tensor())
    assert time.monotonic() - started < journal.DEADLINE_S
    assert len(opened) == 1
    assert counted()["journal_thread"] == 1
    assert "journal_stalled" not in counted()
    assert rec._untold > 0


def test_a_pool_that_is_renamed_leaves_no_row_of_its_old_name(rec: Recorder) -> None:
    pool = HostPool(label="swa")
    assert rows(rec, m.POOL_BYTES) == {("target", "swa", "other"): 1000}

    def register(_store: Store, host_pool: HostPool, _name: object) -> None:
        REGISTER(lambda *_: None, _store, host_pool.kv_buffer)

    SIDE_POOL(register, Store(), pool, SimpleNamespace(value="draft_swa"))
    old, new = ("target", "swa"), ("draft", "draft_swa")
    assert rows(rec, m.POOL_BYTES) == {(*old, "other"): 0, (*new, "other"): 1000}
    assert rows(rec, m.POOL_TOKENS) == {(*old, "other"): 0, (*new, "other"): 10}
    assert rows(rec, m.POOL_EXPECTED)[old] == 0
    assert rows(rec, m.POOL_REGISTERED) == {old: 0, new: 1}
    assert {labels[:2]: v for labels, v in rows(rec, m.POOL_INFO).items()} == {old: 0, new: 1}
    DESTROY(lambda _: None, pool)
    assert set(rows(rec, m.POOL_BYTES).values()) == {0}
    assert set(rows(rec, m.REGISTERED_BYTES).values()) == {0}
    assert {labels[:2]: v for labels, v in rows(rec, m.POOL_INFO).items()} == {old: 0, new: 0}


def test_the_anchor_given_as_a_side_pool_counts_nothing(rec: Recorder) -> None:
    """SGLang's own call is a no-op there: ``register_mem_pool_host`` has done it."""
    pool = HostPool()

    def nothing(*_: object) -> None:
        return None

    SIDE_POOL(nothing, Store(), pool, SimpleNamespace(value="kv"))
    assert told(rec, ev.PoolRegistered) == []
    assert rows(rec, m.POOL_REGISTERED) == {("target", "kv"): 0}


def test_a_pool_without_buffers_is_not_called_registered(rec: Recorder) -> None:
    """A logical anchor: SGLang returns without a registration."""
    pool = HostPool()
    around("register_anchor")(lambda *_: None, Store(), pool)
    assert told(rec, ev.PoolRegistered) == []
    assert rows(rec, m.POOL_REGISTERED) == {("target", "kv"): 0}


def test_the_mode_is_that_of_the_store_that_was_set_up(rec: Recorder) -> None:
    rec.worker = replace(rec.worker, mode="embedded")
    STORE_INIT(lambda _: None, Store())
    pool = HostPool()
    (built,) = told(rec, ev.PoolBuilt)
    assert built.mode == "standalone"
    assert standing.known(pool) is not None


def test_page_locked_bytes_go_with_their_pool(rec: Recorder) -> None:
    tensor = Tensor()

    class Pinned(HostPool):
        def __init__(self) -> None:
            def build(pool: HostPool, pool_label: str = "") -> None:
                PIN(lambda _: None, tensor)
                pool.size, pool.kv_buffer = 10, tensor

            POOL(build, self, pool_label="kv")

    pool = Pinned()
    assert rows(rec, m.PINNED_BYTES) == {("target", "kv"): 1000}
    DESTROY(lambda _: None, pool)
    assert rows(rec, m.PINNED_BYTES) == {("target", "kv"): 0}


@pytest.mark.parametrize(
    ("message", "stage", "cause"),
    [
        ("Not enough host memory available.", "allocation", "budget"),
        ("cudaHostRegister failed (rc=2)", "pinning", "pin"),
    ],
)
def test_a_pool_that_is_built_after_all_ends_its_failure(
    message: str, stage: str, cause: str, rec: Recorder
) -> None:
    with pytest.raises(ValueError, match=message.partition("(")[0]):
        HostPool(error=ValueError(message))
    assert rows(rec, m.HOST_LIMIT)[("psutil",)] > rows(rec, m.HOST_MEMORY)[("psutil",)] > 0
    ((labels, value),) = rows(rec, m.FAILURE_ACTIVE).items()
    assert (labels[0], labels[-1], value) == (stage, cause, 1)
    HostPool()
    assert rows(rec, m.FAILURE_ACTIVE)[labels] == 0


def test_memory_that_is_none_is_a_failure_and_holds_nothing(rec: Recorder) -> None:
    """SGLang up to 0.5.22 takes a null pointer of Mooncake's allocator for memory."""
    allocate = around("allocate", allocators.allocate)

    class MooncakeHostTensorAllocator:
        def allocate(self, dims: Any, dtype: Any) -> Tensor:
            return Tensor(0, 1000)

    class Pool(HostPool):
        def __init__(self) -> None:
            def build(pool: HostPool, pool_label: str = "") -> None:
                pool.size = 10
                pool.kv_buffer = allocate(
                    MooncakeHostTensorAllocator.allocate,
                    MooncakeHostTensorAllocator(),
                    (1000,),
                    SimpleNamespace(itemsize=1),
                )

            POOL(build, self, pool_label="kv")

    pool = Pool()
    (built,) = told(rec, ev.PoolBuilt)
    assert (built.outcome, built.reason, built.bytes) == ("failure", "null_pointer", 0)
    assert rows(rec, m.POOL_BYTES) == {}
    ((labels, value),) = rows(rec, m.FAILURE_ACTIVE).items()
    assert (labels[0], labels[-1], value) == ("allocation", "null_pointer", 1)
    assert standing.known(pool) is not None


def test_a_mismatch_at_a_later_attach_is_harmful(rec: Recorder) -> None:
    """Without a backend at start no pool was expected; the store that refuses says otherwise."""
    rec.worker = replace(rec.worker, storage_backend="", mode="")
    pool = HostPool()
    error = RuntimeError("standalone storage requires MooncakeHostTensorAllocator")

    def fail(*_: object) -> None:
        raise error

    with pytest.raises(RuntimeError):
        STORE_INIT(fail, Store(), None, pool)
    (event,) = told(rec, ev.MismatchSeen)
    assert (event.reason, event.harmful) == ("backend_requires", True)
    assert standing.known(pool) is not None


def test_a_forked_child_has_no_pool_of_its_parent(rec: Recorder) -> None:
    pool = HostPool()
    mismatch._seen[1] = ev.MismatchSeen(
        role="", pool="", expected="", actual="", reason="", harmful=True
    )
    pid = os.fork()
    if pid == 0:
        empty = not standing._built and not standing._ids and not mismatch._seen
        os._exit(0 if empty and standing.known(pool) is None else 1)
    mismatch._seen.clear()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert standing.known(pool) is not None


def test_live_updates_keep_the_order_of_the_journal(
    rec: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the lower number is applied first, also from several threads."""
    seen: list[float] = []
    monkeypatch.setattr(
        rec, "_apply_live", lambda event, _now: seen.append(getattr(event, "count", -1))
    )
    go = threading.Barrier(4)

    def emit(start: int) -> None:
        go.wait()
        for number in range(200):
            rec.emit(ev.ObsError(where="x", count=start + number))

    threads = [threading.Thread(target=emit, args=(n * 1000,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [e.count for e in told(rec, ev.ObsError)] == [n for n in seen if n >= 0]


def test_a_store_that_was_told_by_a_file_of_another_kind(tmp_path: Any) -> None:
    """A configuration that cannot be read here says nothing of the mode."""
    from hicache_obs.hooks.worker import expected_mode

    file = tmp_path / "mooncake.yaml"
    file.write_text("standalone_storage: true\n")
    environ = {"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": str(file)}
    assert expected_mode("mooncake", None, environ) == ""
    assert expected_mode("mooncake", f"@{file}", {}) == ""
