"""The writer of a run's journal: one append an event, within a deadline, whatever the disk does.

All file work happens in one thread. A caller hands a line over and waits for at most
``DEADLINE_S``: a frozen file system blocks ``open`` and ``write`` for ever, and SGLang must not
notice. What is not acknowledged in time is still written when the disk thaws, as long as it
fits the backlog; what is dropped or fails is counted.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from hicache_obs import faults, runs
from hicache_obs.config import Config
from hicache_obs.wire import JournalLineError, Record, from_line

DEADLINE_S = 0.25
_YIELDS = 3
"""Turns given away: enough where the journal's thread shares this core."""
_PAUSES, _PAUSE = 20, bytes(30_000)
"""Then as many checksums of this, about 7 us each, before sleeping. The interpreter's lock is
free meanwhile, so that a thread which wakes on another core finds it so; and this core stays
awake, where waking it takes longer than writing the line."""
_MOMENT_S = 0.005
MAX_BACKLOG = 1000
"""Lines kept while the disk stalls; one start writes about 40."""


class JournalWriter:
    """Appends to one run's journal. Opened by its own thread when the first line comes."""

    def __init__(self, config: Config, run: runs.RunName) -> None:
        self._config = config
        self._run = run
        self._jobs: deque[Callable[[], object]] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._awake = True
        self._fd = -1
        self._alive_fd = -1
        self._written = 0
        self._torn = False
        self._full = False
        self._stalled = False
        self._threadless = False
        self._lost = 0
        self._last_loss = ""
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="hicache-obs-journal", daemon=True)
        self.directory: Path | None = None

    def start(self) -> None:
        """Start the writer's thread.

        Raises:
            RuntimeError: the process may not start one; every line is counted as lost then.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._threadless = True
            raise
        atexit.register(self.flush)

    def append(self, line: bytes, *, wait: bool, sync: bool = False) -> bool:
        """Hand *line* over; True once it is written (and on disk, with *sync*).

        With ``wait=False`` the line is written after all earlier ones and before any later one,
        and True means that it was taken.
        """
        return self.hand_over(line, wait=wait, sync=sync)()

    def hand_over(
        self, line: bytes, *, wait: bool, sync: bool = False, counted: bool = True
    ) -> Callable[[], bool]:
        """Queue *line* and return at once; the function returned waits as ``append`` does.

        In two steps, so that a lock can give lines their order without being held while the
        disk is slow. A line that is not *counted* is no loss when it fails.
        """
        if self._threadless:
            self._lose("the process may not start a thread", counted)
            return _no
        if len(self._jobs) >= MAX_BACKLOG:
            self._lose("backlog full: the state directory does not answer", counted)
            return _no
        if not wait or self._stalled or threading.current_thread() is self._thread:
            self._jobs.append(partial(self._write, line, sync, counted))
            if not self._awake:
                self._wake.put(None)
            return _no if self._stalled else _yes
        done = _thread.allocate_lock()
        done.acquire()
        result = [False]

        def job() -> None:
            result[0] = self._write(line, sync, counted)
            done.release()

        def acknowledged() -> bool:
            for turn in range(_YIELDS + _PAUSES):
                if done.acquire(blocking=False):
                    return result[0]
                os.sched_yield()
                if turn >= _YIELDS:
                    zlib.crc32(_PAUSE)
            if not done.acquire(timeout=DEADLINE_S):
                self._stalled = True
                faults.count("journal_stalled", f"no answer from the disk within {DEADLINE_S} s")
                return False
            return result[0]

        self._jobs.append(job)
        self._wake.put(None)
        return acknowledged

    def defer(self, job: Callable[[], None]) -> None:
        """Run *job* in the writer's thread, soon. Safe in a finalizer: it takes no lock."""
        self._jobs.append(job)
        self._wake.put(None)

    def flush(self) -> None:
        """Wait, within the deadline, until everything handed over is written."""
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        done = _thread.allocate_lock()
        done.acquire()
        self.defer(done.release)
        done.acquire(timeout=DEADLINE_S)

    @property
    def lost(self) -> int:
        """Lines lost since the last ``take_lost``."""
        return self._lost

    def take_lost(self) -> tuple[int, str]:
        """Lines lost since the last call, and why the last one was."""
        lost, self._lost = self._lost, 0
        return lost, self._last_loss

    @property
    def healthy(self) -> bool:
        """Whether the newest line was written: a report of losses would get through."""
        return self._fd >= 0 and not self._torn and not self._stalled and not self._full

    # In the writer's thread

    def _loop(self) -> None:
        try:
            self._open()
        except Exception as error:  # noqa: BLE001 - whatever the directory is, SGLang goes on
            faults.count("journal_open", error)
        cleaned = False
        while True:
            self._run_jobs()
            self._stalled = False
            if not cleaned and self.directory is not None:
                cleaned = True
                self._clean(self.directory)
            self._rest()

    def _run_jobs(self) -> None:
        while self._jobs:
            try:
                self._jobs.popleft()()
            except Exception as error:  # noqa: BLE001 - one bad job must not end the writer
                faults.count("journal_job", error)

    def _rest(self) -> None:
        """Sleep until there is work.

        For a moment it is taken for awake: lines that nobody waits for do not wake it then (a
        wake-up costs their hook more than all the rest), it looks for them when the moment is
        over. Whoever adds a job looks at ``_awake`` after that, and this the other way round,
        so no job is left behind.
        """
        try:
            self._wake.get(timeout=_MOMENT_S)
            return
        except Empty:
            pass
        self._awake = False
        if not self._jobs:
            self._wake.get()
        self._awake = True

    def _open(self) -> None:
        directory = runs.choose_state_dir(self._config)
        self._alive_fd = runs.hold_alive_lock(directory, self._run.text)
        runs.set_group(runs.alive_path(directory, self._run.text), self._config)
        path = runs.journal_path(directory, self._run.text)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o640)
        os.fchmod(self._fd, 0o640)
        os.fchmod(self._alive_fd, 0o640)
        runs.set_group(path, self._config)
        self.directory = directory

    def _clean(self, directory: Path) -> None:
        try:
            limit = self._config.journal_max_bytes
            runs.remove_old_dead_runs(directory, self._run.text, limit)
        except Exception as error:  # noqa: BLE001 - the writer goes on with what is there
            faults.count("journal_clean", error)

    def _write(self, line: bytes, sync: bool, counted: bool) -> bool:
        if self._fd < 0:
            self._lose("the state directory cannot be used", counted)
            return False
        data = b"\n" + line if self._torn else line
        self._full = self._written + len(data) > self._config.journal_max_bytes
        if self._full:
            self._lose("HICACHE_OBS_JOURNAL_MAX_BYTES is reached", counted)
            return False
        try:
            count = os.write(self._fd, data)
            self._written += count
            self._torn = count != len(data)
            if self._torn:
                self._lose(f"short write: {count} of {len(data)} bytes", counted)
                return False
            if sync:
                os.fdatasync(self._fd)
        except OSError as error:
            self._torn = True
            self._lose(str(error), counted)
            faults.count("journal_write", error)
            return False
        return True

    def _lose(self, reason: str, counted: bool) -> None:
        self._last_loss = reason
        if counted:
            self._lost += 1


def _yes() -> bool:
    return True


def _no() -> bool:
    return False


def read(path: Path) -> Iterator[Record | JournalLineError]:
    """The records of a finished journal; a line that is none is yielded as its error.

    A last line without its newline is not yet a line and is left out. Empty lines (the mark of
    a write that was cut short) are skipped.
    """
    with os.fdopen(runs.open_file(path), "rb") as file:
        for line in file:
            if not line.endswith(b"\n") or line == b"\n":
                continue
            try:
                yield from_line(line)
            except JournalLineError as error:
                yield error
