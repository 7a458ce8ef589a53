"""One recorder a process: events in order, faults counted, nothing raised."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hicache_obs import config, faults, journal, live, recorder, runs, updates, wire
from hicache_obs import events as ev
from hicache_obs.events import Event, HooksReported, WorkerFailed, WorkerReady
from hicache_obs.metrics import OBS_ERRORS, OBS_JOURNAL_LOST, Update
from hicache_obs.recorder import UNKNOWN_WORKER, Recorder

READY = WorkerReady(duration_s=1.0)
HOOKS = HooksReported(installed=1, pending=0, missing=())
FAILED = WorkerFailed(outcome="failure", stage="registration", cause="foreign_buffer")


@pytest.fixture
def make(settings: Callable[..., config.Config]) -> Callable[..., Recorder]:
    return lambda **variables: Recorder(settings(**variables))


def path_of(rec: Recorder) -> Path:
    assert rec.config.state_dir is not None
    return runs.journal_path(rec.config.state_dir, rec._run.text)


def written(rec: Recorder) -> list[wire.Record]:
    """The records on disk; a line that is none fails the test."""
    rec.flush()
    items = list(journal.read(path_of(rec)))
    records = [item for item in items if isinstance(item, wire.Record)]
    assert records == items
    return records


def events(rec: Recorder) -> list[Event]:
    return [record.event for record in written(rec) if record.event is not None]


def kinds(rec: Recorder) -> list[str]:
    return [event.kind for event in events(rec)]


# The first event


def test_nothing_before_the_first_event(make: Callable[..., Recorder]) -> None:
    threads = threading.active_count()
    rec = make()
    rec.next_call()
    assert not rec.started
    assert threading.active_count() == threads
    assert not path_of(rec).parent.exists()


@pytest.mark.parametrize(
    ("hostname", "pod", "node", "host", "own_network"),
    [
        ("node-7", "", "", "node-7", False),
        ("sglang-0", "sglang-0", "", "sglang-0", True),
        ("sglang-0", "sglang-0", "node-7", "node-7", True),
        ("node-7", "sglang-0", "", "node-7", False),
        ("node-7", "sglang-0", "node-7", "node-7", False),
        ("node-7", "sglang-0", "node-7.example.com", "node-7.example.com", False),
        ("node-7.example.com", "sglang-0", "node-7", "node-7", False),
        ("named-in-the-spec", "sglang-0", "node-7", "node-7", True),
        ("container", "", "node-7", "node-7", False),
    ],
)
def test_where_it_runs(
    make: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    hostname: str,
    pod: str,
    node: str,
    host: str,
    own_network: bool,
) -> None:
    monkeypatch.setattr(recorder.socket, "gethostname", lambda: hostname)
    for name, value in (("POD_NAME", pod), ("NODE_NAME", node)):
        monkeypatch.setenv(name, value)
    rec = make()
    rec.emit(READY)
    first = events(rec)[0]
    assert isinstance(first, ev.RunStarted)
    assert (first.host, first.pod, first.own_network) == (host, pod, own_network)


def test_the_first_lines_say_which_process_and_worker(
    make: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "serving")
    monkeypatch.setenv("POD_NAME", "sglang-0")
    rec = make()
    rec.worker = replace(UNKNOWN_WORKER, model_name="m", tp_rank="3", hicache=True)
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    rec.emit(READY)
    run, worker, ready = events(rec)
    assert isinstance(run, ev.RunStarted)
    assert (run.pid, run.run, run.boot_id) == (os.getpid(), path_of(rec).stem, runs.boot_id())
    assert (run.namespace, run.pod) == ("serving", "sglang-0")
    assert run.host
    assert run.python_version
    assert run.obs_version
    assert run.launch == runs.launch() != ""
    assert before <= run.boottime_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert worker == rec.worker
    assert ready == READY
    assert rec.started


LAUNCHER = """
import os, subprocess, sys
ticks = open("/proc/self/stat").read().split()[21]
open("/proc/self/comm", "w").write("a) R (1 2")
rank = [sys.executable, "-c", "from hicache_obs import runs; print(runs.launch())"]
for _ in range(2):
    print(subprocess.run(rank, capture_output=True, text=True, check=True).stdout.strip())
print(f"{os.getpid()}-{ticks}")
"""


def test_ranks_of_one_start_share_its_launch_whatever_its_name(
    run_python: Callable[..., str],
) -> None:
    first, second, parent = run_python(LAUNCHER).split()
    assert first == second == parent


def test_no_launch_where_the_parent_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 0)
    assert runs.launch() == ""


def test_numbers_and_times_rise(make: Callable[..., Recorder]) -> None:
    rec = make()
    for _ in range(5):
        rec.emit(HOOKS)
    records = written(rec)
    assert [record.seq for record in records] == list(range(1, 8))
    times = [record.time for record in records]
    assert times == sorted(times)


def test_an_awaited_event_is_in_the_file_when_emit_returns_and_all_before_it(
    make: Callable[..., Recorder],
) -> None:
    rec = make()
    rec.emit(HOOKS)
    rec.emit(READY)
    found = [r.event for r in journal.read(path_of(rec)) if isinstance(r, wire.Record)]
    assert found[2:] == [HOOKS, READY]


def test_a_failure_is_on_disk_when_emit_returns(
    make: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    rec = make()

    def fdatasync(fd: int) -> None:
        synced.append(path_of(rec).read_bytes())
        os.fdatasync(fd)

    monkeypatch.setattr(journal, "os", SimpleNamespace(**{**vars(os), "fdatasync": fdatasync}))
    rec.emit(READY)
    assert synced == []
    rec.emit(FAILED)
    assert len(synced) == 1
    assert b"foreign_buffer" in synced[0]


def test_call_numbers_are_never_given_twice(make: Callable[..., Recorder]) -> None:
    rec = make()
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.extend(rec.next_call() for _ in range(300)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 1201))


def test_a_second_thread_cannot_come_before_the_first_lines(
    make: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def gethostname() -> str:
        inside.set()
        go_on.wait(5)
        return "host"

    monkeypatch.setattr(recorder.socket, "gethostname", gethostname)
    rec = make()
    first = threading.Thread(target=rec.emit, args=(READY,))
    second = threading.Thread(target=rec.emit, args=(FAILED,))
    first.start()
    assert inside.wait(5)
    second.start()
    second.join(0.3)
    go_on.set()
    first.join()
    second.join()
    assert kinds(rec)[:2] == ["run", "worker_starting"]


class SlowJobs(deque[Callable[[], object]]):
    """A queue in which one thread's job can be overtaken before it stands."""

    slow: threading.Thread | None = None

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.overtaken = threading.Event(), threading.Event()

    def append(self, job: Callable[[], object]) -> None:
        if threading.current_thread() is self.slow:
            self.reached.set()
            self.overtaken.wait(0.3)
        super().append(job)


def test_lines_of_two_threads_stand_in_the_order_of_their_numbers(
    make: Callable[..., Recorder],
) -> None:
    rec = make()
    rec.emit(READY)
    rec._journal._jobs = queue = SlowJobs()
    queue.slow = threading.Thread(target=rec.emit, args=(HOOKS,))
    queue.slow.start()
    assert queue.reached.wait(5)
    fast = threading.Thread(target=lambda: (rec.emit(HOOKS), queue.overtaken.set()))
    fast.start()
    queue.slow.join()
    fast.join()
    assert [record.seq for record in written(rec)] == [1, 2, 3, 4, 5]


def test_a_deferred_jobs_line_stands_in_the_order_of_its_number(
    make: Callable[..., Recorder],
) -> None:
    rec = make()
    rec.emit(READY)
    inside, go_on = threading.Event(), threading.Event()

    def job() -> None:
        inside.set()
        go_on.wait(5)
        rec.emit(FAILED)

    rec.defer(job)
    assert inside.wait(5)
    rec.emit(HOOKS)
    go_on.set()
    rec.flush()
    assert [record.seq for record in written(rec)] == [1, 2, 3, 4, 5]


# Faults of ours


def test_faults_become_events(make: Callable[..., Recorder]) -> None:
    rec = make()
    faults.count("hook_pool", ValueError("odd"))
    faults.count("hook_pool", ValueError("odder"))
    rec.emit(READY)
    rec.emit(READY)
    told = [event for event in events(rec) if isinstance(event, ev.ObsError)]
    assert told == [ev.ObsError(where="hook_pool", count=2, error="ValueError: odder")]


def test_bad_settings_become_events(tmp_path: Path) -> None:
    environ = {"HICACHE_OBS_STATE_DIR": str(tmp_path / "state"), "HICACHE_OBS_DRAFTFIX": "off"}
    rec = Recorder(config.load(environ))
    rec.emit(READY)
    (told,) = [event for event in events(rec) if isinstance(event, ev.ObsError)]
    assert (told.where, told.count) == ("config", 1)
    assert "did you mean HICACHE_OBS_DRAFT_FIX?" in told.error


def boom(*_: object, **__: object) -> Any:
    raise RuntimeError("boom")


EXPLOSIONS: list[tuple[object, str]] = [
    (wire, "to_line"),
    (journal.JournalWriter, "start"),
    (journal.JournalWriter, "take_lost"),
    (runs, "choose_state_dir"),
    (runs, "hold_alive_lock"),
    (runs, "remove_old_dead_runs"),
    (recorder.socket, "gethostname"),
    (recorder.platform, "python_version"),
    (live, "multiproc_dir"),
    (recorder.time, "time"),
    (faults, "take_unreported"),
]


@pytest.mark.parametrize(("place", "name"), EXPLOSIONS, ids=[name for _, name in EXPLOSIONS])
def test_no_explosion_leaves_emit(
    make: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    counted: Callable[[], dict[str, int]],
    place: ModuleType,
    name: str,
) -> None:
    rec = make()
    rec._journal._lose("a line before", counted=True)
    with monkeypatch.context() as patch:
        if place is recorder.time:
            patch.setattr(recorder, "time", SimpleNamespace(time=boom))
        else:
            patch.setattr(place, name, boom)
        rec.emit(READY)
        rec.emit(FAILED)
        done = threading.Event()
        rec.defer(done.set)
        done.wait(0.2)
    assert sum(counted().values()) >= 1
    rec.emit(READY)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (recorder.socket, "gethostname"),
        (recorder.platform, "python_version"),
        (live, "multiproc_dir"),
    ],
    ids=["host", "python", "live"],
)
def test_a_start_that_breaks_costs_no_later_event(
    make: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch, place: ModuleType, name: str
) -> None:
    rec = make()
    with monkeypatch.context() as patch:
        patch.setattr(place, name, boom)
        rec.emit(READY)
    rec.emit(FAILED)
    rec.emit(READY)
    assert kinds(rec).count("worker_failed") == 1
    assert kinds(rec)[-1] == "worker_ready"


class Exploding:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_an_exploding_journal_is_counted(
    make: Callable[..., Recorder], counted: Callable[[], dict[str, int]]
) -> None:
    rec = make()
    rec.emit(READY)
    rec._journal = Exploding()  # type: ignore[assignment]
    rec.emit(READY)
    rec.emit(FAILED)
    assert counted() == {"emit": 2}


@pytest.mark.parametrize("name", ["apply", "updates"])
def test_an_exploding_live_metric_is_counted_and_the_journal_goes_on(
    make: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    counted: Callable[[], dict[str, int]],
    name: str,
) -> None:
    rec = make()
    rec.emit(READY)
    rec._live = SimpleNamespace(apply=boom if name == "apply" else lambda _: None)  # type: ignore[assignment]
    if name == "updates":
        monkeypatch.setattr(recorder, "updates", boom)
    rec.emit(FAILED)
    rec._live = None
    rec.emit(READY)
    assert counted()["live"] >= 1
    assert kinds(rec).count("worker_ready") == 2
    assert "worker_failed" in kinds(rec)
    assert "obs_error" in kinds(rec)


def test_an_event_that_cannot_be_encoded_does_not_stop_the_next(
    make: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    counted: Callable[[], dict[str, int]],
) -> None:
    rec = make()
    rec.emit(READY)
    with monkeypatch.context() as patch:
        patch.setattr(wire, "to_line", boom)
        rec.emit(READY)
    rec.emit(FAILED)
    assert counted() == {"emit": 1}
    assert [kind for kind in kinds(rec) if kind != "obs_error"] == [
        "run",
        "worker_starting",
        "worker_ready",
        "worker_failed",
    ]


def test_an_unusable_state_directory_is_counted_and_nothing_else_happens(
    make: Callable[..., Recorder], tmp_path: Path, counted: Callable[[], dict[str, int]]
) -> None:
    (tmp_path / "file").touch()
    rec = make(STATE_DIR=str(tmp_path / "file/state"))
    rec.emit(READY)
    rec.emit(FAILED)
    assert counted()["journal_open"] == 1


# Losses


class Full:
    """A disk that is full while *on*."""

    def __init__(self) -> None:
        self.on = False

    def write(self, fd: int, data: bytes) -> int:
        if self.on:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    made = Full()
    monkeypatch.setattr(journal, "os", SimpleNamespace(**{**vars(os), "write": made.write}))
    return made


def test_a_loss_is_told_with_its_reason(make: Callable[..., Recorder], full: Full) -> None:
    rec = make()
    rec.emit(READY)
    full.on = True
    rec._journal.append(b"{}\n", wait=True)
    full.on = False
    rec.emit(READY)
    (told,) = [event for event in events(rec) if isinstance(event, ev.JournalLost)]
    assert told.lost == 1
    assert "No space left on device" in told.reason


def test_every_event_lost_on_a_full_disk_is_told_when_there_is_room(
    make: Callable[..., Recorder], full: Full
) -> None:
    rec = make()
    rec.emit(READY)
    full.on = True
    for _ in range(10):
        rec.emit(READY)
    full.on = False
    rec.emit(READY)
    rec.emit(READY)
    assert kinds(rec).count("worker_ready") == 3
    told = [event.lost for event in events(rec) if isinstance(event, ev.JournalLost)]
    assert sum(told) >= 10


def test_a_line_that_tells_of_losses_is_not_one(make: Callable[..., Recorder], full: Full) -> None:
    rec = make()
    rec.emit(READY)
    told: list[int] = []
    faults_told: list[str] = []

    def apply(changes: list[Update]) -> None:
        told.extend(int(change.value) for change in changes if change.metric is OBS_JOURNAL_LOST)
        if full.on:
            faults_told.extend("x" for change in changes if change.metric is OBS_ERRORS)

    rec._live = SimpleNamespace(apply=apply)  # type: ignore[assignment]
    full.on = True
    for _ in range(10):
        rec.emit(READY)
    rec.flush()
    full.on = False
    rec.emit(READY)
    assert sum(told) == 10 + len(faults_told)


# Live metrics


def test_off_makes_no_live_metrics(
    make: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    rec = make(PROMETHEUS="off")
    rec.emit(READY)
    assert rec._live is None
    assert list(tmp_path.glob("*.db")) == []


def test_no_live_metrics_while_sglangs_are_off(make: Callable[..., Recorder]) -> None:
    rec = make()
    rec.emit(READY)
    assert rec._live is None


LIVE = """
import os, sys
from dataclasses import replace
from hicache_obs import recorder
from hicache_obs.events import WorkerReady
rec = recorder.get()
rec.worker = replace(rec.worker, model_name="m", tp_rank="3", extra_labels={"zone": "a"})
imported = "prometheus_client" in sys.modules
rec.emit(WorkerReady(duration_s=1.0))
"""


def test_live_metrics_have_the_workers_labels(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    script = """
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
rows = {s.name: s for family in registry.collect() for s in family.samples}
print(imported)
for name in ("hicache_worker_up", "hicache_worker_info", "hicache_worker_starts_total"):
    labels = rows[name].labels
    print(rows[name].value, labels["model_name"], labels["tp_rank"], labels["zone"])
"""
    multiproc = tmp_path / "multiproc"
    multiproc.mkdir()
    told = run_python(
        LIVE + script,
        HICACHE_OBS_STATE_DIR=str(tmp_path / "state"),
        PROMETHEUS_MULTIPROC_DIR=str(multiproc),
    )
    assert told.splitlines() == ["False", *["1.0 m 3 a"] * 3]


def test_live_metrics_that_cannot_be_are_counted_and_the_journal_goes_on(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    script = """
import prometheus_client
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
"""
    behind = """
from hicache_obs import journal, runs
rec.flush()
path = runs.journal_path(rec.config.state_dir, rec._run.text)
print([record.event.kind for record in journal.read(path)])
"""
    head, tail = LIVE.split("rec = recorder.get()")
    told = run_python(
        head + script + "rec = recorder.get()" + tail + behind,
        tmp_path,
        HICACHE_OBS_STATE_DIR=str(tmp_path / "state"),
    )
    assert told.strip() == str(["run", "worker_starting", "worker_ready", "obs_error"])


# Blame


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_blame_follows_the_error(make: Callable[..., Recorder]) -> None:
    rec = make()
    error = RuntimeError("code: -1")
    rec.blame(error, "registration", "foreign_buffer")
    assert rec.blamed(error) == ("registration", "foreign_buffer")
    assert rec.blamed(raised(TypeError("wrapped"), error)) == ("registration", "foreign_buffer")
    deeper = raised(ValueError("again"), raised(TypeError("wrapped"), error))
    assert rec.blamed(deeper) == ("registration", "foreign_buffer")


def test_blame_follows_an_error_raised_while_it_was_handled(
    make: Callable[..., Recorder],
) -> None:
    rec = make()
    error = RuntimeError("code: -1")
    rec.blame(error, "setup", "transport")
    later = KeyError("cleanup")
    later.__context__ = error
    assert rec.blamed(later) == ("setup", "transport")


def test_nobody_is_blamed_for_another_error(make: Callable[..., Recorder]) -> None:
    rec = make()
    rec.blame(RuntimeError("code: -1"), "registration", "foreign_buffer")
    assert rec.blamed(RuntimeError("code: -1 of something else")) == ("", "exception")


def test_a_circle_of_errors_ends(make: Callable[..., Recorder]) -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert make().blamed(one) == ("", "exception")


def test_blame_keeps_no_reference(make: Callable[..., Recorder]) -> None:
    rec = make()
    error = RuntimeError("x")
    before = sys.getrefcount(error)
    rec.blame(error, "setup", "transport")
    rec.blamed(error)
    assert sys.getrefcount(error) == before


# The mode


def test_the_mode_seen_outranks_the_configured(make: Callable[..., Recorder]) -> None:
    rec = make()
    assert rec.mode == ""
    rec.worker = replace(UNKNOWN_WORKER, mode="embedded")
    assert rec.mode == "embedded"
    rec.store_mode = "standalone"
    assert rec.mode == "standalone"


# Deferred jobs and forks


def test_deferred_jobs_run_in_the_journals_thread(make: Callable[..., Recorder]) -> None:
    rec = make()
    rec.emit(READY)
    names: list[str] = []
    done = threading.Event()
    rec.defer(lambda: (names.append(threading.current_thread().name), done.set()))
    assert done.wait(5)
    assert names == ["hicache-obs-journal"]


def test_a_deferred_job_may_emit(make: Callable[..., Recorder]) -> None:
    rec = make()
    rec.emit(READY)
    done = threading.Event()
    rec.defer(lambda: (rec.emit(FAILED), done.set()))
    assert done.wait(5)
    assert kinds(rec)[-1] == "worker_failed"


def test_a_job_before_the_first_event_is_dropped(make: Callable[..., Recorder]) -> None:
    ran: list[int] = []
    rec = make()
    rec.defer(lambda: ran.append(1))
    rec.emit(READY)
    rec.flush()
    assert ran == []


def test_one_recorder_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorder, "_recorder", None)
    monkeypatch.setenv("HICACHE_OBS_STATE_DIR", str(tmp_path))
    found: list[Recorder] = []
    barrier = threading.Barrier(4)

    def get() -> None:
        barrier.wait()
        found.append(recorder.get())

    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert found[0].config.state_dir == tmp_path


FORK = """
import os, sys
from hicache_obs import recorder
from hicache_obs.events import WorkerReady
rec = recorder.get()
rec.emit(WorkerReady(duration_s=1.0))
child = os.fork()
if child == 0:
    assert recorder.get() is not rec
    assert not recorder.get().started
    ran = []
    rec.defer(lambda: ran.append(1))
    recorder.get().emit(WorkerReady(duration_s=2.0))
    recorder.get().flush()
    os._exit(len(ran))
assert os.waitpid(child, 0)[1] == 0
assert recorder.get() is rec
rec.emit(WorkerReady(duration_s=3.0))
print(os.getpid(), child)
"""


def durations(path: Path) -> list[float]:
    found = (item.event for item in journal.read(path) if isinstance(item, wire.Record))
    return [event.duration_s for event in found if isinstance(event, WorkerReady)]


def test_a_forked_child_records_in_a_journal_of_its_own(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    parent, child = map(int, run_python(FORK, HICACHE_OBS_STATE_DIR=str(tmp_path)).split())
    by_pid = {run.pid: runs.journal_path(tmp_path, run.text) for run in runs.list_runs(tmp_path)}
    assert set(by_pid) == {parent, child}
    assert durations(by_pid[parent]) == [1.0, 3.0]
    assert durations(by_pid[child]) == [2.0]
    for pid, path in by_pid.items():
        first = next(journal.read(path))
        assert isinstance(first, wire.Record)
        assert isinstance(first.event, ev.RunStarted)
        assert first.event.pid == pid


def test_a_fork_does_not_end_the_parents_liveness(
    tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    script = FORK + "sys.stdout.flush(); sys.stdin.read()"
    process = start_python(script, HICACHE_OBS_STATE_DIR=str(tmp_path))
    assert process.stdout is not None
    parent, child = map(int, process.stdout.readline().split())
    alive = {run.pid: runs.is_alive(tmp_path, run.text) for run in runs.list_runs(tmp_path)}
    assert alive == {parent: True, child: False}


def test_a_fork_while_the_recorder_is_busy_does_not_hang(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    script = """
import os, signal, sys, threading
from hicache_obs import recorder
from hicache_obs.events import WorkerReady
rec = recorder.get()
rec.emit(WorkerReady(duration_s=1.0))
busy, done = threading.Event(), threading.Event()
def hold():
    with rec.locked(), recorder._creation:
        busy.set()
        done.wait()
threading.Thread(target=hold).start()
busy.wait()
child = os.fork()
if child == 0:
    signal.alarm(3)
    recorder.get().emit(WorkerReady(duration_s=2.0))
    os._exit(0)
print(os.waitpid(child, 0)[1])
done.set()
"""
    assert run_python(script, HICACHE_OBS_STATE_DIR=str(tmp_path)).strip() == "0"


def test_the_two_update_functions_are_one() -> None:
    assert recorder.updates is updates.updates
