"""One journal directory: its runs, kept current; what ended is summed up and cleared away."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from hicache_obs import runs
from hicache_obs.exporter import checkpoint, forgotten
from hicache_obs.exporter.fold import Run
from hicache_obs.exporter.lock import Lock
from hicache_obs.exporter.tail import JournalTail
from hicache_obs.runs import MAX_DEAD_RUNS, RunName
from hicache_obs.wire import JournalLineError, Record

logger = logging.getLogger("hicache_obs.exporter")
READ, WAITING, UNREADABLE = "read", "waiting", "unreadable"
Notice = Callable[[str, str, str], None]
"""Called as ``notice(where, key, text)``: counts a problem at *where*, logs each *key* once."""
Listener = Callable[[Run, Record | None], None]
"""Called with a run and each new line of it, then with None once it ended. What a checkpoint says
of earlier looks is not told again, but for runs that still live."""


class JournalDirectory:
    """Follows the journals of *path*.

    One exporter a directory keeps its checkpoint and removes old journals, under an exclusive
    lock; another one (or a command) reads beside it and changes nothing.
    """

    def __init__(
        self,
        path: Path,
        boot: str,
        notice: Notice,
        *,
        listen: Listener,
        keep: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.state, self.reason = WAITING, "not looked at yet"
        self.runs: dict[str, Run] = {}
        self.sums = checkpoint.Checkpoint()
        self.lines = {"event": 0, "skew": 0, "broken": 0}
        self.unreadable: set[str] = set()
        self.version = 0
        """Grows with every change of a run or of the sums."""
        self._boot = boot
        self._notice = notice
        self._listen = listen
        self._clock = clock
        self._lock = Lock(path / "exporter.lock") if keep else None
        self._tails: dict[str, JournalTail] = {}
        self._loaded: tuple[int, int] | None = None
        self._saved = True

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    # Looking

    def look(self) -> list[Run]:
        """Read what is new; the runs that were seen dead now, read to their end."""
        try:
            entries = {entry.name: entry for entry in os.scandir(self.path)}
        except FileNotFoundError:
            return self._cannot(WAITING, "it does not exist yet")
        except OSError as error:
            return self._cannot(UNREADABLE, error.strerror or str(error))
        if self.state != READ:
            self.state, self.reason = READ, ""
            self.version += 1
            logger.info("%s is read", self.path)
        self._load()
        names = {name.removesuffix(".jsonl") for name in entries if name.endswith(".jsonl")}
        for name in sorted(names - self.runs.keys() - self.sums.ended.keys()):
            self._begin(name)
        return self._follow(entries)

    def _cannot(self, state: str, reason: str) -> list[Run]:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self.version += 1
            logger.warning("%s is %s: %s", self.path, state, reason)
        return []

    def _begin(self, name: str) -> None:
        parsed = RunName.parse(name)
        if parsed is not None:
            run = self.runs[name] = Run(parsed)
            run.judged, run.verdict = name in self.sums.ended, self.sums.ended.get(name)
            run.seen_alive = self.sums.died.get(name, 0.0)
            self.version += 1
            self._tails[name] = JournalTail(runs.journal_path(self.path, name))

    def _follow(self, entries: dict[str, os.DirEntry[str]]) -> list[Run]:
        died = []
        for name, run in self.runs.items():
            if not run.alive:
                continue
            alive = name.startswith(self._boot + "-") and self._holds_lock(name)
            file = entries.get(f"{name}.jsonl")
            done = self._read(run, file) if file is not None else True
            if alive:
                run.seen_alive = self._clock()
            elif done:
                run.die(max(run.seen_alive, self._last_written(file)))
                died.append(run)
                self.version += 1
        return died

    def _holds_lock(self, name: str) -> bool:
        try:
            return runs.is_alive(self.path, name)
        except OSError as error:
            self._notice("journal_lock", name, f"{self.path}/{name}.alive: {error.strerror}")
            return True

    def _read(self, run: Run, file: os.DirEntry[str]) -> bool:
        """Fold what is new in *run*'s journal; whether it was read to its end."""
        tail = self._tails[run.name.text]
        try:
            more = tail.has_news(file.stat(follow_symlinks=False))
            while more:
                found, more = tail.read()
                self.version += 1
                for record in found:
                    self._fold(run, record)
        except FileNotFoundError:
            return True
        except OSError as error:
            self.unreadable.add(tail.path.name)
            text = f"{tail.path} cannot be read: {error.strerror}"
            self._notice("journal_read", str(tail.path), text)
            return False
        self.unreadable.discard(tail.path.name)
        return True

    def _fold(self, run: Run, record: Record | JournalLineError) -> None:
        try:
            if isinstance(record, JournalLineError):
                raise record
            if run.add(record):
                self.lines["skew" if record.unknown else "event"] += 1
                if not run.judged:
                    self._listen(run, record)
        except Exception as error:  # noqa: BLE001 - whatever the line says, the others go on
            if run.judged:  # read once more: it was told and counted before
                return
            self.lines["broken"] += 1
            path = self._tails[run.name.text].path
            self._notice("journal_line", str(path), f"{path}: a line was skipped: {error}")

    def _last_written(self, file: os.DirEntry[str] | None) -> float:
        try:
            return min(file.stat().st_mtime, self._clock()) if file else self._clock()
        except OSError:
            return self._clock()

    # The checkpoint

    def _load(self) -> None:
        """Read the checkpoint at first, and whenever another exporter replaced it."""
        if self._loaded is not None and self._lock is not None and self._lock.check():
            return
        if self._lock is not None:
            self._lock.try_to_take(self._notice)
        found = self._stamp()
        if found == self._loaded:
            return
        try:
            self.sums = checkpoint.load(self.path)
        except ValueError as error:
            self._set_aside(error)
        except OSError as error:
            self._notice("checkpoint", str(self.path), f"{self.path}: {error}")
        self._loaded, self._saved = found, self.sums.since > 0
        self.sums.since = self.sums.since or self._clock()
        self.version += 1
        self.unreadable.clear()
        self.runs.clear()
        self._tails.clear()
        for name in self.sums.ended:  # read once more: some of their rows may still stand
            if runs.journal_path(self.path, name).exists():
                self._begin(name)

    def _stamp(self) -> tuple[int, int]:
        try:
            status = (self.path / checkpoint.NAME).stat()
        except OSError:
            return (0, 0)
        return status.st_ino, status.st_mtime_ns

    def _set_aside(self, error: ValueError) -> None:
        self.sums = checkpoint.Checkpoint()
        self._notice("checkpoint", str(self.path), f"{error}; counters begin with the journals")
        if self._lock is not None and self._lock.held:
            path = self.path / checkpoint.NAME
            try:
                path.replace(path.with_suffix(".broken"))
            except OSError as failed:
                self._notice("checkpoint", f"{path} aside", f"{path}: {failed}")

    # Clearing away

    def compact(self, standing: Collection[Run], kept_runs: int = MAX_DEAD_RUNS) -> None:
        """Sum up the runs that ended, forget those that do not stand, and, as the one that
        keeps the directory, save the sums and remove the oldest journals beyond *kept_runs*."""
        if self.state != READ:
            return
        for name, run in list(self.runs.items()):
            if run.alive:
                continue
            if name not in self.sums.ended:
                self._saved = False
            self.sums.take_in(run)
            if run not in standing:
                del self.runs[name], self._tails[name]
        if self._lock is not None and self._lock.held:
            self._obey()
            if self._save():
                self._remove(kept_runs)

    def _obey(self) -> None:
        """Forget the servers that ``hicache-obs forget`` named."""
        for server in forgotten.requests(self.path, self._notice):
            self.version += 1
            for name, run in list(self.runs.items()):
                if not run.alive and server.is_of(run):
                    self._unlink(name)
                    del self.runs[name], self._tails[name]
            living = any(server.is_of(run) for run in self.runs.values())
            if not living:
                self.sums.sums = {
                    series: value
                    for series, value in self.sums.sums.items()
                    if not server.has(dict(series[1]))
                }
            self._saved = False
            if self._save():
                server.done()

    def _save(self) -> bool:
        if self._saved:
            return True
        there = {run.text for run in runs.list_runs(self.path)}
        kept = {
            name: verdict
            for name, verdict in self.sums.ended.items()
            if name in there or name in self.runs
        }
        self.sums.ended = kept
        self.sums.died = {name: self.sums.died.get(name, 0.0) for name in kept}
        try:
            checkpoint.save(self.path, self.sums)
        except OSError as error:
            self._notice("checkpoint", f"{self.path} save", f"{self.path}: {error}")
            return False
        self._loaded, self._saved = self._stamp(), True
        return True

    def _remove(self, kept_runs: int) -> None:
        ended = [run for run in runs.list_runs(self.path) if run.text in self.sums.ended]
        surplus = len(ended) - kept_runs
        # Those that stand go last: their rows are still served.
        for run in sorted(ended, key=lambda run: run.text in self.runs):
            if surplus <= 0:
                break
            surplus -= 1
            self._unlink(run.text)
            if self.runs.pop(run.text, None) is not None:
                del self._tails[run.text]

    def _unlink(self, name: str) -> None:
        for path in (runs.journal_path(self.path, name), runs.alive_path(self.path, name)):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self._notice("retention", str(path), f"{path} cannot be removed: {error.strerror}")
