"""A duration as a parameter of a command."""

from __future__ import annotations

import click

from hicache_obs.durations import seconds


class Duration(click.ParamType[float]):
    """As Prometheus writes it (``90m``, ``24h``, ``7d``), in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = seconds(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration; write for example 90m, 24h or 7d", param, ctx)
        return float(found)
