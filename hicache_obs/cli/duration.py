"""Durations as Prometheus writes them: ``30m``, ``24h``, ``7d``."""

from __future__ import annotations

import re

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9})([smhd])")


def seconds(text: str) -> float | None:
    """The duration in seconds, None if *text* is none."""
    match = _DURATION.fullmatch(text)
    return None if match is None else float(int(match[1]) * _UNITS[match[2]])


class Duration(click.ParamType[float]):
    """A parameter that is a duration, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = seconds(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration; write for example 90m, 24h or 7d", param, ctx)
        return found
