"""The live applier: updates into prometheus_client objects of the worker.

SGLang serves them on its own ``/metrics`` in prometheus_client's multi-process mode. That
library chooses its value class when it is imported, and SGLang sets PROMETHEUS_MULTIPROC_DIR
after it has loaded plug-ins: so it is imported here, at the first event, and never at load.

A multi-process gauge cannot drop a row. A row that ended is 0, and every query on an info gauge
says ``== 1``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hicache_obs import faults, runs
from hicache_obs.labels import safe_extra_labels
from hicache_obs.metrics import COUNTER, WORKER_LABELS, Metric, Update

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge

GAUGE_MODE: Final = "livemostrecent"
"""SGLang uses other modes, so the files ``gauge_livemostrecent_<pid>.db`` are ours alone."""


class LiveApplier:
    """Applies updates to metrics of this process, labelled with the worker's labels."""

    def __init__(self, worker: Mapping[str, str], extra: Mapping[str, str]) -> None:
        """*worker* holds a value for each of ``WORKER_LABELS``; *extra* the user's labels.

        Raises:
            RuntimeError: prometheus_client was imported before PROMETHEUS_MULTIPROC_DIR was
                set, so that nothing of this process would reach SGLang's ``/metrics``.
        """
        from prometheus_client import CollectorRegistry, values

        if values.ValueClass.__name__ == "MutexValue":
            raise RuntimeError(
                "prometheus_client was imported before PROMETHEUS_MULTIPROC_DIR was set; "
                "another plug-in must not import it at load"
            )
        extra, problems = safe_extra_labels(extra)
        for problem in problems:
            faults.count("extra_label", problem)
        self._names = (*WORKER_LABELS, *extra)
        self._values = (*(worker[name] for name in WORKER_LABELS), *extra.values())
        self._registry = CollectorRegistry()
        self._made: dict[Metric, Gauge | Counter] = {}
        self._changes: dict[tuple[Metric, tuple[str, ...]], Callable[[float], None]] = {}

    def apply(self, updates: list[Update]) -> None:
        for metric, labels, value in updates:
            change = self._changes.get((metric, labels))
            if change is None:
                change = self._change(metric, labels)
            change(value)

    def _change(self, metric: Metric, labels: tuple[str, ...]) -> Callable[[float], None]:
        """What changes the row: adding to a counter, setting a gauge."""
        family = self._made.get(metric)
        if family is None:
            family = self._made[metric] = self._family(metric)
        child: Any = family.labels(*self._values, *labels)
        change: Callable[[float], None] = child.inc if metric.type == COUNTER else child.set
        self._changes[metric, labels] = change
        return change

    def _family(self, metric: Metric) -> Gauge | Counter:
        from prometheus_client import Counter, Gauge

        names = (*self._names, *metric.labels)
        if metric.type == COUNTER:
            return Counter(metric.name, metric.help, names, registry=self._registry)
        return Gauge(
            metric.name,
            metric.help,
            names,
            registry=self._registry,
            multiprocess_mode=GAUGE_MODE,
        )


def remove_stale_gauges(multiproc_dir: Path, state_dir: Path | None, own: runs.RunName) -> None:
    """Remove our gauge files of dead runs, and one that an earlier process of our pid left.

    A directory that the user set survives restarts, and a container gives the same pid again:
    without this, the rows of a failed start would stand beside those of the good one.
    """
    dead: set[int] = {own.pid}
    living: set[int] = set()
    if state_dir is not None:
        for run in runs.list_runs(state_dir):
            if run.text != own.text:
                (living if runs.is_alive(state_dir, run.text) else dead).add(run.pid)
    for pid in dead - living:
        (multiproc_dir / f"gauge_{GAUGE_MODE}_{pid}.db").unlink(missing_ok=True)


def multiproc_dir() -> Path | None:
    """SGLang's multi-process directory, None while its metrics are off."""
    value = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return Path(value) if value else None
