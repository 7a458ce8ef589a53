"""Durations as Prometheus writes them: ``30s``, ``5m``, ``24h``, ``7d``."""

from __future__ import annotations

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")


def seconds(text: str) -> int | None:
    """The duration in seconds, None if *text* is none."""
    match = _DURATION.fullmatch(text)
    return None if match is None else int(match[1]) * _UNITS[match[2]]


def text(duration_s: int) -> str:
    """In the largest unit that fits: ``90s``, ``5m``, ``1h``."""
    for unit, size in reversed(_UNITS.items()):
        if duration_s and duration_s % size == 0:
            return f"{duration_s // size}{unit}"
    return "0s"
