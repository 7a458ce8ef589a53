"""The lock of the one exporter that keeps a journal directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


class Lock:
    """An exclusive POSIX record lock; the kernel frees it when the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held = False
        self._fd = -1

    def check(self) -> bool:
        """Whether the lock is held, and its file is still the one that others see."""
        if self.held:
            try:
                same = os.path.samestat(os.stat(self.path), os.fstat(self._fd))
            except OSError:
                same = False
            if not same:
                self.close()
        return self.held

    def try_to_take(self, notice: Callable[[str, str, str], None]) -> None:
        """Take the lock if it is free. What keeps it from being taken is said once."""
        try:
            if self._fd < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self.path, flags, 0o640)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            self.held = True
        except BlockingIOError:
            notice(
                "exporter_lock",
                f"{self.path} held",
                f"another exporter keeps {self.path.parent}; this one only reads",
            )
        except OSError as error:
            notice(
                "exporter_lock",
                f"{self.path} cannot",
                f"{self.path.parent} cannot be kept ({error.strerror}): counters last as long as "
                "its journals, and old journals stay; let the exporter's group write there "
                "(HICACHE_OBS_STATE_GROUP)",
            )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self.held = -1, False
