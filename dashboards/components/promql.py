"""Macros of the sources' PromQL, so that each selector is written once and every metric is known.

``SERIES(metric, matchers)``
    the metric with the dashboard's variables and further matchers, from every scrape source.
``ONCE(metric, matchers)``
    the same with each rank once: the exporter's rows (only they have the label ``host``), and
    those of SGLang's own /metrics for ranks that no exporter tells of, whose instance is the host.
``OWN(metric, matchers)``
    a metric of the exporter itself, which has none of a worker's labels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from components.source import SourceError
from hicache_obs import metrics as m
from hicache_obs.rules.recording import recordings
from hicache_obs.rules.templates import once

_MACRO = re.compile(r"\b([A-Z]{3,})\(([a-zA-Z_:]+)(?:, ([^()]*))?\)")
_LEFT = re.compile(r"\b[A-Z]{3,}\([^)]*\)?")
RECORDED = {recording.name for recording in recordings()}
METRICS = {metric.name for metric in (*m.METRICS, *m.EXPORTER_METRICS)}
_OWN_VARIABLES = ("cluster", "instance")


def expand(expression: str, variables: Sequence[str]) -> str:
    """*expression* without macros, its series narrowed by *variables* of the dashboard.

    Raises:
        SourceError: an unknown macro or metric.
    """

    def replaced(match: re.Match[str]) -> str:
        macro, metric, more = match[1], match[2], match[3] or ""
        if metric not in METRICS | RECORDED | {"ALERTS"}:
            raise SourceError(f"unknown metric {metric!r} in {match[0]!r}")
        if macro == "SERIES":
            return f"{metric}{{{_matchers(_of(metric, variables), more)}}}"
        if macro == "OWN":
            names = [name for name in _OWN_VARIABLES if name in variables]
            return f"{metric}{{{_matchers(names, more)}}}"
        if macro == "ONCE":
            matchers = _matchers(variables, f"HOST, {more}" if more else "HOST")
            return f"({once(f'{metric}{{{matchers}}}')})".replace("\n", " ")
        raise SourceError(f"unknown macro {macro!r} in {match[0]!r}; known are SERIES, ONCE, OWN")

    found = _MACRO.sub(replaced, expression.strip())
    left = _LEFT.search(found)
    if left is not None:
        raise SourceError(f"{left[0]!r} is no macro(metric, matchers)")
    return found


def _of(metric: str, variables: Sequence[str]) -> list[str]:
    """Of *variables* those that *metric* has as labels: what is summed has no instance."""
    if metric in RECORDED | {"ALERTS"}:
        return [name for name in variables if name in ("cluster", "namespace", "model_name")]
    return list(variables)


def _matchers(names: Sequence[str], more: str) -> str:
    own = [f'{name}=~"${name}"' for name in names]
    return ", ".join([*own, more] if more else own)
