"""The thread that keeps a host current: it wakes when a journal grows, and to look at locks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from hicache_obs.exporter.host import Host

logger = logging.getLogger("hicache_obs.exporter")
LOOK_S = 0.25
"""Longest time between two looks: a death frees a lock and changes no file."""
_SHARE = 10
"""A look that takes long is followed by a rest of that many times its duration."""
STUCK_S = 30.0


class Watcher:
    """Refreshes *host* until it is stopped."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._stop = threading.Event()
        self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="hicache-obs-follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def healthy(self) -> bool:
        """Whether the journals were looked at lately: a frozen disk holds the thread."""
        return self._thread.is_alive() and time.monotonic() - self._looked < STUCK_S

    def _run(self) -> None:
        self._look()
        while not self._stop.is_set():
            for _ in self._wakes():
                started = time.monotonic()
                self._look()
                if self._stop.wait(min((time.monotonic() - started) * _SHARE, STUCK_S / 2)):
                    return

    def _look(self) -> None:
        try:
            self._host.refresh()
        except Exception as error:
            text = f"a look at the journals failed, the one before is served: {error!r}"
            self._host.problems.notice("look", text, text)
            logger.debug("%s", text, exc_info=True)
        self._looked = time.monotonic()

    def _wakes(self) -> Iterator[None]:
        """Wakes for at most a minute, then the directories are looked for anew."""
        until = time.monotonic() + 60
        paths = [d.path for d in self._host.directories if d.path.is_dir()]
        for _ in _changes(paths, self._stop) if paths else self._ticks():
            yield
            now_there = sum(d.path.is_dir() for d in self._host.directories)
            if time.monotonic() > until or now_there != len(paths):
                return

    def _ticks(self) -> Iterator[None]:
        while not self._stop.wait(LOOK_S):
            yield


def _changes(paths: list[Path], stop: threading.Event) -> Iterator[None]:
    """A wake when something below *paths* changes, and after ``LOOK_S`` in any case.

    Without inotify (no watches left, a file system that has none) only the latter.
    """
    from watchfiles import watch

    try:
        for _ in watch(
            *paths,
            watch_filter=None,
            debounce=50,
            step=10,
            rust_timeout=int(LOOK_S * 1000),
            yield_on_timeout=True,
            stop_event=stop,
            raise_interrupt=False,
            recursive=False,
            force_polling=False,
        ):
            yield
    except OSError as error:
        logger.warning("journals are polled every %g s: %s", LOOK_S, error)
        while not stop.wait(LOOK_S):
            yield
