"""Faults of our own: counted, logged once a place, never raised into SGLang.

Every ``except`` that guards SGLang from us ends here. The counts leave the process as
``obs_error`` events (see ``recorder``), or stay in memory when nothing can be written.
"""

from __future__ import annotations

import logging
import os
import threading

logger = logging.getLogger("hicache_obs")

_lock = threading.Lock()
_counts: dict[str, int] = {}
_unreported: dict[str, tuple[int, str]] = {}


def count(where: str, error: BaseException | str) -> None:
    """Count a fault at *where* (a short constant name); log the first of each place."""
    try:
        text = error if isinstance(error, str) else _text(error)
        with _lock:
            first = where not in _counts
            _counts[where] = _counts.get(where, 0) + 1
            number, _ = _unreported.get(where, (0, ""))
            _unreported[where] = (number + 1, text)
        if first:
            logger.warning("hicache-obs: %s: %s (SGLang goes on; logged once)", where, text)
    except Exception:  # noqa: BLE001, S110 - the last resort: nothing may leave from here
        pass


def _text(error: BaseException) -> str:
    said = text_of(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def text_of(error: BaseException) -> str:
    """What an exception says, "" for one whose ``__str__`` raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - somebody else's code
        return ""


def _forget_in_child() -> None:
    """The parent's lock may be held by a thread that the child does not have."""
    global _lock  # noqa: PLW0603 - one lock a process
    _lock = threading.Lock()
    _counts.clear()
    _unreported.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def unreported() -> bool:
    """Whether ``take_unreported`` has something."""
    return bool(_unreported)


def take_unreported() -> list[tuple[str, int, str]]:
    """Return and clear ``(where, number, last error text)`` not yet turned into events."""
    if not _unreported:
        return []
    with _lock:
        taken = [(where, number, text) for where, (number, text) in _unreported.items()]
        _unreported.clear()
    return taken
