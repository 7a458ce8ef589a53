"""One recorder a process: events from the hooks, in order, to the journal and the live metrics.

It comes to life with the first event, so a process without HiCache has no thread, no file and
no prometheus_client of ours.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from hicache_obs import __version__, config, faults, live, wire
from hicache_obs.events import Event, JournalLost, ObsError, RunStarted, StoreSetUp, WorkerStarting
from hicache_obs.journal import JournalWriter
from hicache_obs.ledger import Ledger
from hicache_obs.runs import RunName, launch
from hicache_obs.updates import updates

UNKNOWN_WORKER = WorkerStarting(
    model_name="",
    engine_type="",
    tp_rank="",
    pp_rank="",
    dp_rank="",
    server_port="",
    node_rank="",
    nnodes="",
    extra_labels={},
    sglang_version="",
    mooncake_version="",
    torch_version="",
    hicache=False,
    storage_backend="",
    mode="",
)
"""Stands where host pools are built outside a scheduler, so that no label is missing."""


class Recorder:
    """Numbers events, writes them to the journal, then applies them to the live metrics."""

    def __init__(self, settings: config.Config) -> None:
        self.config = settings
        self.ledger = Ledger()
        self.worker = UNKNOWN_WORKER
        self.ready = False
        """Whether the worker got past HiCache start-up."""
        self.store_mode = ""
        self.store_setup: StoreSetUp | None = None
        self._run = RunName.new()
        self._journal = JournalWriter(settings, self._run)
        self._live: live.LiveApplier | None = None
        self._blame: dict[tuple[int, str, str], tuple[str, str]] = {}
        self._lock = threading.RLock()
        self._starting = threading.RLock()
        self._seq = 0
        self._untold = 0
        self._calls = 0
        self._started = False
        self._pid = os.getpid()

    @property
    def mode(self) -> str:
        """Of the Mooncake store: as it was seen, else as this server is configured."""
        return self.store_mode or self.worker.mode

    def next_call(self) -> int:
        """The number that ties the entry of a native call to its end."""
        with self._lock:
            self._calls += 1
            return self._calls

    def locked(self) -> threading.RLock:
        """The lock under which the ledger is read and changed."""
        return self._lock

    @staticmethod
    def now() -> float:
        """Seconds since the epoch."""
        return time.time()

    def emit(self, event: Event) -> None:
        """Record *event*. Never raises; a fault of ours is counted."""
        try:
            if not self._started:
                self._start()
            self._record(event)
            if self._untold or self._journal.lost or faults.unreported():
                self._record_faults()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach SGLang
            faults.count("emit", error)

    def blame(self, error: BaseException, stage: str, cause: str) -> None:
        """Remember that *error* came out of a failure of HiCache at *stage*."""
        self._blame[_identity(error)] = (stage, cause)

    def blamed(self, error: BaseException) -> tuple[str, str]:
        """Stage and cause of the HiCache failure that led to *error*, or ``("", "exception")``.

        Follows ``__cause__`` and ``__context__``: SGLang rewraps some exceptions.
        """
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            found = self._blame.get(_identity(link))
            if found is not None:
                return found
            seen.add(id(link))
            link = link.__cause__ or link.__context__
        return "", "exception"

    def defer(self, job: Callable[[], None]) -> None:
        """Run *job* in the journal's thread: for finalizers, which may neither lock nor wait."""
        if self._started and self._pid == os.getpid():
            self._journal.defer(job)

    @property
    def started(self) -> bool:
        """Whether anything was recorded in this process."""
        return self._started

    def flush(self) -> None:
        self._journal.flush()

    def _start(self) -> None:
        if self._started:
            return
        with self._starting:
            if self._started:
                return
            try:
                self._begin()
            except Exception as error:  # noqa: BLE001 - the event itself may still get through
                faults.count("start", error)
            self._started = True

    def _begin(self) -> None:
        """The first two lines, and the live metrics; a fault in one of them costs no other."""
        try:
            self._journal.start()
        except RuntimeError as error:
            faults.count("journal_thread", error)
        first = RunStarted(
            run=self._run.text,
            boot_id=self._run.boot,
            pid=self._pid,
            **_place(),
            obs_version=__version__,
            python_version=_fact(platform.python_version),
            launch=_fact(launch),
            boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        )
        self._record(first)
        self._open_live(first)
        self._record(self.worker)
        for problem in self.config.problems:
            faults.count("config", problem)

    def _record(self, event: Event) -> None:
        now = time.time()
        durable = event.durable
        with self._lock:
            line = wire.to_line(event, self._seq + 1, now)
            written = self._journal.hand_over(line, wait=event.awaited or durable, sync=durable)
            self._seq += 1
            self._apply_live(event, now)  # while the journal's thread wakes up and writes
        written()

    def _record_faults(self) -> None:
        lost, reason = self._journal.take_lost()
        if lost:
            self._untold += lost
            self._apply_live(JournalLost(lost=lost, reason=reason), time.time())
        if self._untold and self._journal.healthy:
            self._tell_losses(reason)
        for where, count, error in faults.take_unreported():
            self._record(ObsError(where=where, count=count, error=error))

    def _tell_losses(self, reason: str) -> None:
        """Into the journal, now that it takes lines again; the live metrics have counted them."""
        with self._lock:
            told = JournalLost(lost=self._untold, reason=reason)
            line = wire.to_line(told, self._seq + 1, time.time())
            written = self._journal.hand_over(line, wait=True, counted=False)
            self._seq += 1
        if written():
            self._untold = 0

    def _apply_live(self, event: Event, now: float) -> None:
        try:
            if self._live is not None:
                self._live.apply(updates(event, now))
        except Exception as error:  # noqa: BLE001 - the journal has it; SGLang goes on
            faults.count("live", error)

    def _open_live(self, first: RunStarted) -> None:
        try:
            directory = live.multiproc_dir()
            if self.config.prometheus == "off" or directory is None:
                return
            live.remove_stale_gauges(directory, self._journal.directory, self._run)
            self._live = live.LiveApplier(asdict(self.worker), self.worker.extra_labels)
            self._live.apply(updates(first, time.time()))
        except Exception as error:  # noqa: BLE001 - the journal has it; SGLang goes on
            faults.count("live", error)


def _place() -> dict[str, Any]:
    """Where this process runs: the machine, and in Kubernetes what the downward API says.

    A pod without host network has a host name of its own: its pod's name, or one that is set.
    """
    hostname, node = _fact(socket.gethostname), os.environ.get("NODE_NAME", "")
    pod = os.environ.get("POD_NAME", "")
    own = hostname == pod or (node and hostname.partition(".")[0] != node.partition(".")[0])
    return {
        "host": node or hostname,
        "namespace": os.environ.get("POD_NAMESPACE", ""),
        "pod": pod,
        "own_network": bool(pod and own),
    }


def _fact(ask: Callable[[], str]) -> str:
    """What the host says of itself, "" if it does not."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - a name for display is worth no event
        faults.count("host_fact", error)
        return ""


def _identity(error: BaseException) -> tuple[int, str, str]:
    """An exception without a reference to it (it holds frames); id alone may be reused."""
    return id(error), type(error).__name__, faults.text_of(error)[:200]


_recorder: Recorder | None = None
_creation = threading.Lock()


def get() -> Recorder:
    """The recorder of this process; a forked child gets one of its own."""
    global _recorder  # noqa: PLW0603 - one recorder a process
    if _recorder is None:
        with _creation:
            if _recorder is None:
                _recorder = Recorder(config.load())
    return _recorder


def _forget_in_child() -> None:
    global _recorder, _creation
    _recorder, _creation = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
