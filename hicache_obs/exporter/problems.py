"""Problems of the exporter's own: counted by place, each told once."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger("hicache_obs.exporter")
MAX_TOLD = 256
"""Most problems kept to be shown; the oldest go."""


class Problems:
    """Counts and sentences. Any thread may tell one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._told: dict[str, str] = {}

    def notice(self, where: str, key: str, text: str) -> None:
        """A problem at *where*: each *key* is counted, logged and shown once."""
        with self._lock:
            if self._tell(key, text):
                self._counts[where] = self._counts.get(where, 0) + 1

    def count(self, where: str, text: str) -> None:
        """A problem at *where* that comes again: counted each time, logged and shown once."""
        with self._lock:
            self._counts[where] = self._counts.get(where, 0) + 1
            self._tell(where, text)

    def counts(self) -> dict[str, int]:
        """How many there were, by place."""
        with self._lock:
            return dict(self._counts)

    def told(self) -> tuple[str, ...]:
        """The sentences, oldest first."""
        with self._lock:
            return tuple(self._told.values())

    def _tell(self, key: str, text: str) -> bool:
        if key in self._told:
            return False
        logger.warning("%s", text)
        self._told[key] = text
        if len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
        return True
