"""The journal's writer: whole lines in order, within a deadline, whatever the disk does."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hicache_obs import config, faults, journal, runs, wire
from hicache_obs.events import JournalLost
from hicache_obs.journal import JournalWriter

SOON = 0.15
"""Far below ``DEADLINE_S``: an append that took less did not wait for the disk."""


def line(seq: int) -> bytes:
    return wire.to_line(JournalLost(lost=seq, reason="x" * 50), seq, 0.0)


def seqs(path: Path) -> list[int]:
    """Numbers of the whole lines; a broken line is left out."""
    return [item.seq for item in journal.read(path) if isinstance(item, wire.Record)]


def drain(writer: JournalWriter) -> None:
    """Wait until the writer found its queue empty once."""
    for _ in range(2):
        done = threading.Event()
        writer.defer(done.set)
        assert done.wait(5)


class Disk:
    """The ``os`` that a journal sees; ``write`` and ``fdatasync`` can be replaced."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.stuck = threading.Event()
        self.answers: list[Callable[[int, bytes], int]] = []
        self.synced: list[int] = []

    def write(self, fd: int, data: bytes) -> int:
        if not self.gate.is_set():
            self.stuck.set()
            self.gate.wait()
        return self.answers.pop(0)(fd, data) if self.answers else os.write(fd, data)

    def fdatasync(self, fd: int) -> None:
        self.synced.append(os.fstat(fd).st_size)
        os.fdatasync(fd)

    def freeze(self) -> None:
        self.gate.clear()

    def thaw(self) -> None:
        self.gate.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    shim = SimpleNamespace(**{**vars(os), "write": made.write, "fdatasync": made.fdatasync})
    monkeypatch.setattr(journal, "os", shim)
    yield made
    made.thaw()


Start = Callable[..., tuple[JournalWriter, Path]]


@pytest.fixture
def start(settings: Callable[..., config.Config], tmp_path: Path) -> Start:
    """A started writer and the path of its journal."""

    def make(**variables: str) -> tuple[JournalWriter, Path]:
        run = runs.RunName.new()
        writer = JournalWriter(settings(**variables), run)
        writer.start()
        return writer, runs.journal_path(tmp_path / "state", run.text)

    return make


def elapsed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


# Lines and files


def test_lines_stand_in_order(start: Start) -> None:
    writer, path = start()
    for seq in range(1, 101):
        assert writer.append(line(seq), wait=seq % 10 == 0)
    assert seqs(path) == list(range(1, 101))
    assert path.read_bytes() == b"".join(map(line, range(1, 101)))


def test_a_line_waited_for_is_in_the_file(start: Start) -> None:
    writer, path = start()
    assert writer.append(line(1), wait=True)
    assert path.read_bytes() == line(1)


def test_waiting_covers_what_was_not_waited_for(start: Start) -> None:
    writer, path = start()
    assert writer.append(line(1), wait=False)
    assert writer.append(line(2), wait=True)
    assert seqs(path) == [1, 2]


def test_flush_waits_for_what_was_handed_over(start: Start, disk: Disk) -> None:
    writer, path = start()
    for seq in range(1, 51):
        writer.append(line(seq), wait=False)
    writer.flush()
    assert seqs(path) == list(range(1, 51))


def test_only_sync_waits_for_the_disk(start: Start, disk: Disk) -> None:
    writer, path = start()
    writer.append(line(1), wait=True)
    assert disk.synced == []
    assert writer.append(line(2), wait=True, sync=True)
    assert disk.synced == [path.stat().st_size]


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_files_are_0640_whatever_the_umask(start: Start, mask: int) -> None:
    before = os.umask(mask)
    try:
        writer, path = start()
        assert writer.append(line(1), wait=True)
    finally:
        os.umask(before)
    for file in (path, path.with_suffix(".alive")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_no_file_before_the_thread_runs(settings: Callable[..., config.Config]) -> None:
    made = settings()
    JournalWriter(made, runs.RunName.new())
    assert made.state_dir is not None
    assert not made.state_dir.exists()


def test_an_existing_file_is_never_written_to(
    settings: Callable[..., config.Config], tmp_path: Path, counted: Callable[[], dict[str, int]]
) -> None:
    run = runs.RunName.new()
    path = runs.journal_path(tmp_path / "state", run.text)
    path.parent.mkdir()
    path.write_bytes(b"of another\n")
    writer = JournalWriter(settings(), run)
    writer.start()
    assert not writer.append(line(1), wait=True)
    assert path.read_bytes() == b"of another\n"
    assert counted() == {"journal_open": 1}


def test_the_run_is_alive_while_its_writer_runs(
    start: Start, run_python: Callable[..., str]
) -> None:
    writer, path = start()
    writer.append(line(1), wait=True)
    script = """
import sys
from pathlib import Path
from hicache_obs import runs
print(runs.is_alive(Path(sys.argv[1]), sys.argv[2]))
"""
    assert run_python(script, path.parent, path.stem).strip() == "True"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file any group")
def test_files_get_the_group(start: Start) -> None:
    writer, path = start(STATE_GROUP="4711")
    writer.append(line(1), wait=True)
    files = (path, path.with_suffix(".alive"), path.parent)
    assert {file.stat().st_gid for file in files} == {4711}


def test_a_bad_group_costs_no_line(start: Start) -> None:
    writer, path = start(STATE_GROUP="99999999999")
    assert writer.append(line(1), wait=True)
    assert seqs(path) == [1]


# Writes that fail


def short(count: int) -> Callable[[int, bytes], int]:
    return lambda fd, data: os.write(fd, data[:count])


def full(_fd: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("count", [0, 1, 40, len(line(2)) - 1])
def test_a_short_write_spoils_no_other_line(start: Start, disk: Disk, count: int) -> None:
    writer, path = start()
    assert writer.append(line(1), wait=True)
    disk.answers = [short(count)]
    assert not writer.append(line(2), wait=True)
    assert writer.append(line(3), wait=True)
    assert writer.append(line(4), wait=True)
    assert [seq for seq in seqs(path) if seq != 2] == [1, 3, 4]
    lost, reason = writer.take_lost()
    assert lost == 1
    assert f"{count} of {len(line(2))} bytes" in reason


def test_a_full_disk_is_counted_and_gone_when_it_is_not_full(
    start: Start, disk: Disk, counted: Callable[[], dict[str, int]]
) -> None:
    writer, path = start()
    writer.append(line(1), wait=True)
    disk.answers = [full, full]
    assert not writer.append(line(2), wait=True)
    assert not writer.append(line(3), wait=True)
    assert writer.append(line(4), wait=True)
    assert seqs(path) == [1, 4]
    lost, reason = writer.take_lost()
    assert lost == 2
    assert "No space left on device" in reason
    assert counted() == {"journal_write": 2}


def test_a_part_then_a_full_disk(start: Start, disk: Disk) -> None:
    writer, path = start()
    disk.answers = [short(20), full, short(10)]
    for seq in (1, 2, 3):
        assert not writer.append(line(seq), wait=True)
    assert writer.append(line(4), wait=True)
    assert seqs(path) == [4]
    assert writer.take_lost()[0] == 3


def test_a_disk_that_will_not_sync_is_a_loss(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, path = start()

    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(journal.os, "fdatasync", fail)
    assert not writer.append(line(1), wait=True, sync=True)
    assert writer.append(line(2), wait=True)
    assert seqs(path)[-1] == 2
    assert writer.take_lost() == (1, "[Errno 5] Input/output error")


def test_taking_the_loss_clears_it(start: Start, disk: Disk) -> None:
    writer, _ = start()
    disk.answers = [full]
    writer.append(line(1), wait=True)
    assert writer.take_lost()[0] == 1
    assert writer.take_lost()[0] == 0


@hypothesis_settings(max_examples=30)
@given(st.lists(st.integers(-1, len(line(1)) + 1), max_size=10))
def test_every_line_acknowledged_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, writes: list[int]
) -> None:
    directory, disk = tmp_path_factory.mktemp("state"), Disk()
    disk.answers = [full if count < 0 else short(count) for count in writes]
    run = runs.RunName.new()
    writer = JournalWriter(config.load({"HICACHE_OBS_STATE_DIR": str(directory)}), run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "os", SimpleNamespace(**{**vars(os), "write": disk.write}))
        writer.start()
        numbers = range(1, len(writes) + 3)
        written = [seq for seq in numbers if writer.append(line(seq), wait=True)]
    path = runs.journal_path(directory, run.text)
    found = seqs(path)
    assert [seq for seq in found if seq in written] == written
    assert found == sorted(found)
    assert writer.take_lost()[0] == len(numbers) - len(written)


def test_a_directory_that_cannot_be_used_is_one_fault(
    settings: Callable[..., config.Config], tmp_path: Path, counted: Callable[[], dict[str, int]]
) -> None:
    (tmp_path / "file").touch()
    writer = JournalWriter(settings(STATE_DIR=str(tmp_path / "file/state")), runs.RunName.new())
    writer.start()
    assert [writer.append(line(seq), wait=True) for seq in (1, 2, 3)] == [False] * 3
    assert counted() == {"journal_open": 1}
    lost, reason = writer.take_lost()
    assert lost == 3
    assert "state directory" in reason
    assert writer.directory is None


# Limits


def test_the_journal_stays_below_its_limit(start: Start) -> None:
    size = len(line(1))
    writer, path = start(JOURNAL_MAX_BYTES=str(3 * size))
    assert [writer.append(line(seq), wait=True) for seq in (1, 2, 3, 4)] == [True] * 3 + [False]
    assert path.stat().st_size == 3 * size
    lost, reason = writer.take_lost()
    assert lost == 1
    assert "HICACHE_OBS_JOURNAL_MAX_BYTES" in reason


def test_a_torn_line_does_not_lift_the_limit(start: Start, disk: Disk) -> None:
    size = len(line(1))
    writer, path = start(JOURNAL_MAX_BYTES=str(2 * size - 1))
    disk.answers = [short(size - 1)]
    writer.append(line(1), wait=True)
    writer.append(line(2), wait=True)
    assert path.stat().st_size <= 2 * size - 1


def test_a_shorter_line_still_fits(start: Start) -> None:
    writer, path = start(JOURNAL_MAX_BYTES=str(len(line(1)) + 10))
    assert writer.append(line(1), wait=True)
    assert not writer.append(line(2), wait=True)
    assert writer.append(b"{}\n", wait=True)
    assert path.read_bytes() == line(1) + b"{}\n"


def test_old_dead_runs_go_at_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    old = "abc-1-1-01234567"
    runs.journal_path(tmp_path / "state", old).write_bytes(b"x" * 5000)
    writer, path = start(JOURNAL_MAX_BYTES="4KiB")
    writer.append(line(1), wait=True)
    drain(writer)
    assert [run.text for run in runs.list_runs(path.parent)] == [path.stem]


def test_a_removal_that_fails_is_counted(
    start: Start, monkeypatch: pytest.MonkeyPatch, counted: Callable[[], dict[str, int]]
) -> None:
    def fail(*_: object) -> list[str]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(runs, "remove_old_dead_runs", fail)
    writer, path = start()
    writer.append(line(1), wait=True)
    drain(writer)
    assert writer.append(line(2), wait=True)
    assert counted() == {"journal_clean": 1}
    assert seqs(path) == [1, 2]


# A disk that does not answer


def test_an_append_waits_no_longer_than_the_deadline(start: Start, disk: Disk) -> None:
    writer, path = start()
    writer.append(line(1), wait=True)
    disk.freeze()
    answers: list[bool] = []
    took = elapsed(lambda: answers.append(writer.append(line(2), wait=True, sync=True)))
    assert answers == [False]
    assert 0.2 <= took <= 0.5
    assert seqs(path) == [1]


def test_later_appends_do_not_wait_again(start: Start, disk: Disk) -> None:
    writer, path = start()
    writer.append(line(1), wait=True)
    disk.freeze()
    writer.append(line(2), wait=True)
    took = elapsed(lambda: [writer.append(line(seq), wait=True) for seq in range(3, 53)])
    assert took < SOON
    disk.thaw()
    drain(writer)
    assert seqs(path) == list(range(1, 53))


def test_after_the_thaw_appends_wait_again(start: Start, disk: Disk) -> None:
    writer, path = start()
    disk.freeze()
    writer.append(line(1), wait=True)
    disk.thaw()
    drain(writer)
    assert writer.append(line(2), wait=True, sync=True)
    assert seqs(path) == [1, 2]
    assert disk.synced


def test_a_stall_is_counted_each_time(
    start: Start, disk: Disk, counted: Callable[[], dict[str, int]]
) -> None:
    writer, _ = start()
    for seq in (1, 2):
        disk.freeze()
        writer.append(line(seq), wait=True)
        disk.thaw()
        drain(writer)
    assert counted() == {"journal_stalled": 2}


def test_a_line_delayed_is_not_lost(start: Start, disk: Disk) -> None:
    writer, _ = start()
    disk.freeze()
    writer.append(line(1), wait=True)
    writer.append(line(2), wait=True)
    disk.thaw()
    drain(writer)
    assert writer.take_lost()[0] == 0


def test_not_waiting_never_waits(start: Start, disk: Disk) -> None:
    writer, _ = start()
    disk.freeze()
    assert elapsed(lambda: writer.append(line(1), wait=False)) < SOON
    assert disk.stuck.wait(5)
    assert elapsed(lambda: writer.append(line(2), wait=False)) < SOON


def test_flush_waits_no_longer_than_the_deadline(start: Start, disk: Disk) -> None:
    writer, _ = start()
    disk.freeze()
    writer.append(line(1), wait=False)
    assert 0.2 <= elapsed(writer.flush) <= 0.5


def test_an_open_that_does_not_answer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, choose = threading.Event(), runs.choose_state_dir

    def choose_later(settings: config.Config) -> Path:
        gate.wait()
        return choose(settings)

    monkeypatch.setattr(runs, "choose_state_dir", choose_later)
    writer, path = start()
    assert 0.2 <= elapsed(lambda: writer.append(line(1), wait=True)) <= 0.5
    assert elapsed(lambda: writer.append(line(2), wait=True)) < SOON
    gate.set()
    drain(writer)
    assert seqs(path) == [1, 2]


def test_the_backlog_is_bounded_and_what_it_holds_is_written(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_BACKLOG", 10)
    writer, path = start()
    disk.freeze()
    writer.append(line(1), wait=False)
    assert disk.stuck.wait(5)
    for seq in range(2, 31):
        writer.append(line(seq), wait=False)
    lost, reason = writer.take_lost()
    assert lost == 19
    assert "backlog" in reason
    disk.thaw()
    drain(writer)
    assert seqs(path) == list(range(1, 12))


def test_a_full_backlog_does_not_wait(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_BACKLOG", 1)
    writer, _ = start()
    disk.freeze()
    writer.append(line(1), wait=False)
    assert disk.stuck.wait(5)
    writer.append(line(2), wait=False)
    answers: list[bool] = []
    assert elapsed(lambda: answers.append(writer.append(line(3), wait=True))) < SOON
    assert answers == [False]


# The writer's own thread


def test_a_deferred_job_runs_in_the_writers_thread_after_earlier_lines(start: Start) -> None:
    writer, path = start()
    seen: list[tuple[str, list[int]]] = []
    done = threading.Event()

    def job() -> None:
        seen.append((threading.current_thread().name, seqs(path)))
        done.set()

    writer.append(line(1), wait=False)
    writer.defer(job)
    assert done.wait(5)
    assert seen == [("hicache-obs-journal", [1])]


def test_an_append_from_the_writers_thread_does_not_deadlock(start: Start) -> None:
    writer, path = start()
    written: list[bool] = []
    writer.defer(lambda: written.append(writer.append(line(1), wait=True, sync=True)))
    drain(writer)
    assert written == [True]
    assert seqs(path) == [1]


def test_a_job_that_raises_does_not_end_the_writer(
    start: Start, counted: Callable[[], dict[str, int]]
) -> None:
    writer, path = start()
    writer.defer(lambda: {}["absent"])
    assert writer.append(line(1), wait=True)
    assert seqs(path) == [1]
    assert counted() == {"journal_job": 1}


def test_many_threads_write_whole_lines(start: Start) -> None:
    writer, path = start()
    barrier = threading.Barrier(4)

    def work(first: int) -> None:
        barrier.wait()
        for seq in range(first, first + 50):
            writer.append(line(seq), wait=seq % 3 == 0)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drain(writer)
    found = seqs(path)
    assert len(found) == 200
    for number in range(1, 5):
        own = [seq for seq in found if seq // 1000 == number]
        assert own == sorted(own)
    assert not faults.take_unreported()


# Reading


def test_reading_leaves_out_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(line(1) + line(2)[:-1])
    assert seqs(path) == [1]


def test_reading_yields_a_broken_line_as_its_error(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(line(1) + line(2)[:30] + b"\n" + b"\xff\xfe\n" + line(3))
    kinds: list[Any] = [type(item) for item in journal.read(path)]
    assert kinds == [wire.Record, wire.JournalLineError, wire.JournalLineError, wire.Record]


def test_reading_skips_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\n" + line(1) + b"\n\n" + line(2))
    assert list(map(type, journal.read(path))) == [wire.Record] * 2


def test_reading_an_empty_journal(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    assert list(journal.read(tmp_path / "run.jsonl")) == []


@given(st.binary(max_size=300))
def test_reading_any_bytes_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    path.write_bytes(line(1) + data)
    items = list(journal.read(path))
    assert isinstance(items[0], wire.Record)


# The end of the process

APPEND = """
import os, sys
from hicache_obs import config, journal, runs, wire
from hicache_obs.events import JournalLost
def line(seq): return wire.to_line(JournalLost(lost=seq, reason="x"), seq, 0.0)
run = runs.RunName.new()
writer = journal.JournalWriter(config.load(), run)
writer.start()
print(run.text, flush=True)
"""


def test_kill_9_loses_no_acknowledged_line(
    tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    script = """
seq = 0
while True:
    seq += 1
    if writer.append(line(seq), wait=True):
        os.write(1, b"%d\\n" % seq)
"""
    process = start_python(APPEND + script, HICACHE_OBS_STATE_DIR=str(tmp_path))
    assert process.stdout is not None
    run = process.stdout.readline().strip()
    for _ in range(200):
        process.stdout.readline()
    process.kill()
    told = [int(text) for text in process.stdout.read().split()]
    last = told[-1] if told else 200
    process.wait()
    assert seqs(runs.journal_path(tmp_path, run))[:last] == list(range(1, last + 1))
    assert not runs.is_alive(tmp_path, run)


def test_lines_not_waited_for_are_written_at_exit(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    script = "[writer.append(line(seq), wait=False) for seq in range(1, 301)]"
    run = run_python(APPEND + script, HICACHE_OBS_STATE_DIR=str(tmp_path)).strip()
    assert seqs(runs.journal_path(tmp_path, run)) == list(range(1, 301))


def test_a_forked_child_does_not_wait_for_its_parents_writer(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    script = """
import time
writer.append(line(1), wait=True)
child = os.fork()
if child == 0:
    sys.exit(0)
started = time.perf_counter()
os.waitpid(child, 0)
print(time.perf_counter() - started)
"""
    told = run_python(APPEND + script, HICACHE_OBS_STATE_DIR=str(tmp_path)).split()
    assert float(told[-1]) < journal.DEADLINE_S - 0.05
