"""One run, folded: what its journal says, as rows, counters and facts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hicache_obs import events as ev
from hicache_obs.classify import allocation_stage
from hicache_obs.labels import safe_extra_labels
from hicache_obs.metrics import COUNTER, WORKER_LABELS, Metric, Update, ended
from hicache_obs.runs import RunName
from hicache_obs.updates import updates
from hicache_obs.wire import MAX_LABEL, Record

Key = tuple[Metric, tuple[str, ...]]


class Server(NamedTuple):
    """What counts as one server: a port of a host. A run without a port stands for its own.

    Without host network the *host* is the pod, within its *namespace*; else that is "".
    """

    namespace: str
    host: str
    port: str
    run: str = ""

    @property
    def address(self) -> tuple[str, str]:
        """Host and port, by which people name it."""
        return self.host, self.port


class Failure(NamedTuple):
    """The newest failure of a run, in the words of its event."""

    time: float
    stage: str
    mode: str
    role: str
    pool: str
    allocator: str
    bytes: int
    code: str
    cause: str
    error_type: str
    error: str


class Verdict(NamedTuple):
    """How a start ended that did not say so itself; labels of ``hicache_worker_starts_total``."""

    outcome: str
    stage: str
    cause: str


@dataclass(eq=False)
class Run:
    """One start of one worker process, as far as its journal was read."""

    name: RunName
    alive: bool = True
    dead_since: float = 0.0
    """When it last wrote, or was last seen alive: seconds since the epoch; only retention reads
    it."""
    seen_alive: float = 0.0
    started: ev.RunStarted | None = None
    worker: ev.WorkerStarting | None = None
    ready: bool = False
    failed: ev.WorkerFailed | None = None
    failure: Failure | None = None
    verdict: Verdict | None = None
    judged: bool = False
    version: int = 0
    """Grows with every change, so that what was made of the run can be kept until then."""
    left: bool = False
    """Whether ``Scheduler.__init__`` was left by an exception, Ctrl-C included."""
    calls: dict[int, ev.CallEntered] = field(default_factory=dict)
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    """Bytes in use when a pool's memory was asked for, by role and pool."""
    refused: dict[int, ev.CallRefused] = field(default_factory=dict)
    """Calls that failed and whose cause was still being found out."""
    pools: dict[tuple[str, str], ev.PoolFacts] = field(default_factory=dict)
    rows: dict[Key, float] = field(default_factory=dict)
    counters: dict[Key, float] = field(default_factory=dict)
    last_event: float = 0.0
    _seen: set[int] = field(default_factory=set)

    def add(self, record: Record) -> bool:
        """Fold one line; False if it was folded before (the file was read again).

        Raises:
            ValueError: the values cannot be, so the line is none of ours. Nothing was folded.
        """
        if record.seq in self._seen:
            return False
        event = record.event
        changes = [] if event is None else updates(event, record.time)
        for change in changes:
            if not math.isfinite(change.value) or (
                change.metric.type == COUNTER and change.value < 0
            ):
                raise ValueError(f"{change.metric.name} cannot be {change.value}")
        self._seen.add(record.seq)
        self.version += 1
        if event is not None:
            self._note(event, record.time)
        for change in changes:
            self.apply(change)
        return True

    def die(self, when: float) -> None:
        """The lock is free, and the journal was read to its end."""
        self.alive, self.dead_since = False, when
        self.version += 1
        self._seen.clear()

    def apply(self, change: Update) -> None:
        self.version += 1
        labels = tuple(label[:MAX_LABEL] for label in change.labels)
        key = (change.metric, labels)
        if change.metric.type == COUNTER:
            self.counters[key] = self.counters.get(key, 0.0) + change.value
        elif ended(change.metric, labels, change.value):
            self.rows.pop(key, None)
        else:
            self.rows[key] = change.value

    def _note(self, event: ev.Event, time: float) -> None:
        self.last_event = time
        if isinstance(event, ev.RunStarted):
            self.started = event
        elif isinstance(event, ev.WorkerStarting):
            self.worker = event
        elif isinstance(event, ev.WorkerReady):
            self.ready = True
        elif isinstance(event, ev.CallEntered):
            self.calls[event.call] = event
            if event.api == "allocate":
                self.used[event.role, event.pool] = event.used_bytes
        elif isinstance(event, ev.PoolReleased):
            self.pools.pop((event.role, event.pool), None)
        elif isinstance(event, ev.PoolNamed) or (
            isinstance(event, ev.PoolBuilt) and event.outcome == "success"
        ):
            self.pools[event.role, event.pool] = event
        elif isinstance(event, ev.WorkerFailed):
            self.left = True
            self.failed = event if event.failed else None
        self._note_call(event)
        if isinstance(event, ev.Outcome) and event.failed:
            self.failure = _failure(event, time, self.failure)

    def _note_call(self, event: ev.Event) -> None:
        call = getattr(event, "call", -1)
        if not isinstance(event, ev.CallEntered):
            self.calls.pop(call, None)
        if isinstance(event, ev.CallRefused):
            self.refused[call] = event
        else:
            self.refused.pop(call, None)

    @property
    def namespace(self) -> str:
        return self.started.namespace if self.started else ""

    @property
    def server(self) -> Server:
        started = self.started
        port = self.worker.server_port if self.worker else ""
        run = "" if port else self.name.text
        if started is None:
            return Server("", "", port, run)
        # The first plug-ins wrote the host name of such a pod, which is its name, as the host.
        if started.own_network or (started.pod and started.pod == started.host):
            return Server(started.namespace, started.pod, port, run)
        return Server("", started.host, port, run)

    @property
    def rank(self) -> tuple[str, str, str]:
        worker = self.worker
        return (worker.tp_rank, worker.pp_rank, worker.dp_rank) if worker else ("", "", "")

    @property
    def launch(self) -> str:
        """The server start that the run belongs to; a run that does not know it is its own."""
        known = self.started.launch if self.started else ""
        where = f"{self.name.boot}/{self.server.namespace}/{self.server.host}"
        return f"{where}/{known}" if known else self.name.text

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """The labels of the worker, in order, as on every series of it."""
        worker, started = self.worker, self.started
        found = {name: getattr(worker, name, "")[:MAX_LABEL] for name in WORKER_LABELS}
        if worker:
            found |= safe_extra_labels(worker.extra_labels)[0]
        if started:
            places = {"host": started.host, "namespace": started.namespace, "pod": started.pod}
            found |= {name: value[:MAX_LABEL] for name, value in places.items() if value}
        return tuple(found.items())


def _failure(event: ev.Outcome, time: float, before: Failure | None) -> Failure:
    """What *event* says, filled up by the failure *before* that led to a worker's own."""
    follows = isinstance(event, (ev.WorkerFailed, ev.PoolRegistered)) or (
        isinstance(event, ev.BackendAttached) and not event.cause
    )
    if follows and before is not None:
        return before
    stage = getattr(event, "stage", "") or _STAGES.get(event.kind, "")
    if isinstance(event, ev.CallRefused):
        stage = stage_of(event.api)
    reason = getattr(event, "reason", "")
    return Failure(
        time=time,
        stage=allocation_stage(reason) if stage == "allocation" else stage,
        mode=getattr(event, "mode", ""),
        role=getattr(event, "role", "none"),
        pool=getattr(event, "pool", ""),
        allocator=getattr(event, "allocator", ""),
        bytes=getattr(event, "bytes", 0),
        code=getattr(event, "code", ""),
        cause=getattr(event, "cause", "") or reason,
        error_type=event.error_type,
        error=event.error,
    )


def stage_of(api: str) -> str:
    """The stage of a native call; every api but these registers."""
    return _API_STAGES.get(api, "registration")


_API_STAGES = {
    "allocate": "allocation",
    "pin": "pinning",
    "initialize": "setup",
    "setup": "setup",
    "warmup": "setup",
}
_STAGES = {
    ev.SegmentAllocated.kind: "allocation",
    ev.PoolBuilt.kind: "allocation",
    ev.PagesPinned.kind: "pinning",
    ev.StoreSetUp.kind: "setup",
    ev.BufferRegistered.kind: "registration",
    ev.PoolRegistered.kind: "registration",
    ev.BackendAttached.kind: "attach",
}


def active(run: Run, metric: Metric) -> Iterator[tuple[str, ...]]:
    """Labels of the rows of *metric* that are not 0."""
    return (labels for (found, labels), value in run.rows.items() if found is metric and value)
