"""Macros of the sources' PromQL, so that each selector is written once and every metric is known.

``SERIES(metric, matchers)``
    the metric with the dashboard's variables and further matchers, from every scrape source.
``ANYWHERE(metric, matchers)``
    the same, whichever scrape instance is chosen.
``ONCE(metric, matchers)``
    the same as SERIES with each rank once: the exporter's rows (only they have the label
    ``host``), and those of SGLang's own /metrics for ranks that no exporter tells of, whose
    instance is the host. Of a counter, each row once: a fault that could not be written to the
    journal is known to SGLang's /metrics only.
``ALERTED(hicache_failure_active, matchers)``
    the failures that stand, as ONCE, with the label ``alert``: the alert that each fires.
``OWN(metric, matchers)``
    a metric of the exporter itself, which has none of a worker's labels.
``SERVER_LABELS``, ``RANK_LABELS``
    the labels that tell servers and ranks apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from components.source import SourceError
from hicache_obs import metrics as m
from hicache_obs.rules.failures import UNREACHABLE
from hicache_obs.rules.of_failure import alert_of
from hicache_obs.rules.recording import recordings
from hicache_obs.rules.templates import RANK, SERVER, once

RECORDED = {recording.name for recording in recordings()}
OURS = {metric.name: metric for metric in (*m.METRICS, *m.EXPORTER_METRICS)}
METRICS = set(OURS)
STAGES = ("allocation", "pinning", "setup", "registration", "attach")
_OF_EXPORTER = ("cluster", "instance")
_OF_SUMS = ("cluster", "namespace", "model_name")
_LABELS = {"SERVER_LABELS": ", ".join(SERVER), "RANK_LABELS": ", ".join(RANK)}
_BUILT_IN = ("__rate_interval",)
_MACRO = re.compile(r"\b([A-Z]{3,})\(([a-zA-Z_:]+)(?:, ([^()]*))?\)")
_LEFT = re.compile(r"\b[A-Z]{3,}\([^)]*\)?|\b[A-Z]{3,}_[A-Z]+\b")
_NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{?)")
_VARIABLE = re.compile(r"\$\{?([a-zA-Z_]\w*)")


def expand(expression: str, variables: Sequence[str]) -> str:
    """*expression* without macros, its series narrowed by *variables* of the dashboard.

    Raises:
        SourceError: an unknown macro, metric or variable; a metric without a macro.
    """

    def replaced(match: re.Match[str]) -> str:
        macro, metric, more = match[1], match[2], match[3] or ""
        if metric not in METRICS | RECORDED | {"ALERTS"}:
            raise SourceError(f"unknown metric {metric!r} in {match[0]!r}")
        if macro not in _MACROS:
            known = ", ".join(_MACROS)
            raise SourceError(f"unknown macro {macro!r} in {match[0]!r}; known are {known}")
        return _MACROS[macro](metric, more, variables)

    found = expression.strip()
    for word, labels in _LABELS.items():
        found = found.replace(word, labels)
    found = _MACRO.sub(replaced, found)
    left = _LEFT.search(found)
    if left is not None:
        raise SourceError(f"{left[0]!r} is no macro(metric, matchers)")
    for name, brace in _NAME.findall(found):
        if name in METRICS | RECORDED and not brace:
            raise SourceError(f"metric {name!r} stands without a macro")
    check_variables(found, (*variables, *_BUILT_IN))
    return found


def check_variables(text: str, known: Sequence[str]) -> None:
    """Raise SourceError for a variable in *text* that is not *known*."""
    for name in _VARIABLE.findall(text):
        if name not in known:
            raise SourceError(f"unknown variable {name!r} in {text!r}")


def _series(metric: str, more: str, variables: Sequence[str]) -> str:
    if metric in RECORDED | {"ALERTS"}:  # what is summed has no instance
        variables = [name for name in variables if name in _OF_SUMS]
    if metric == "ALERTS":  # one that is of no model is not hidden by the choice of one
        optional = [name for name in variables if name != "cluster"]
        variables = [name for name in variables if name == "cluster"]
        more = ", ".join([*(f'{name}=~"${name}|"' for name in optional), more])
    return _selector(metric, variables, more)


def _anywhere(metric: str, more: str, variables: Sequence[str]) -> str:
    return _series(metric, more, [name for name in variables if name != "instance"])


def _own(metric: str, more: str, variables: Sequence[str]) -> str:
    return _selector(metric, [name for name in _OF_EXPORTER if name in variables], more)


def _once(metric: str, more: str, variables: Sequence[str]) -> str:
    if metric not in METRICS:
        raise SourceError(f"{metric!r} is no metric of a rank, so ONCE cannot count it")
    own = OURS[metric].labels if OURS[metric].type == m.COUNTER else ()
    return f"({once(_selector(metric, variables, 'HOST', more), *own)})"


def _alerted(metric: str, more: str, variables: Sequence[str]) -> str:
    if metric != m.FAILURE_ACTIVE.name:
        raise SourceError(f"{metric!r} tells no stage and cause, so ALERTED cannot name its alert")
    found = f"{_once(metric, more, variables)} == 1"
    stages: dict[str, list[str]] = {}
    for stage in STAGES:
        stages.setdefault(alert_of(stage, ""), []).append(stage)
    for alert, those in stages.items():
        found = f'label_replace({found}, "alert", "{alert}", "stage", "{"|".join(those)}")'
    # Last, because these causes have an alert of their own at any stage.
    alert, causes = alert_of(STAGES[0], UNREACHABLE[0]), "|".join(UNREACHABLE)
    return f'label_replace({found}, "alert", "{alert}", "cause", "{causes}")'


_MACROS: Mapping[str, Callable[[str, str, Sequence[str]], str]] = {
    "SERIES": _series,
    "ANYWHERE": _anywhere,
    "ONCE": _once,
    "ALERTED": _alerted,
    "OWN": _own,
}


def _selector(metric: str, names: Sequence[str], *more: str) -> str:
    matchers = [*(f'{name}=~"${name}"' for name in names), *filter(None, more)]
    return f"{metric}{{{', '.join(matchers)}}}"
