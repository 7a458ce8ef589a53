"""The view as prometheus_client's metrics: a custom collector, so that rows can go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from hicache_obs import metrics as m
from hicache_obs.exporter.host import View

_ORDER = {metric: number for number, metric in enumerate((*m.METRICS, *m.EXPORTER_METRICS))}


class HostCollector(Collector):
    """Serves what *view* returns at each scrape."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterator[Family]:
        samples: dict[m.Metric, list[Sample]] = defaultdict(list)
        for metric, _, labels, value in self._view().rows:
            samples[metric].append(Sample(metric.name, labels, value))
        for metric in sorted(samples, key=_ORDER.__getitem__):
            yield _family(metric, samples[metric])

    def describe(self) -> Iterator[Family]:
        """Every family by name, so that a scrape may pick some (``?name[]=``)."""
        return (_family(metric, []) for metric in _ORDER)


def _family(metric: m.Metric, samples: list[Sample]) -> Family:
    name = metric.name.removesuffix("_total") if metric.type == m.COUNTER else metric.name
    family = Family(name, metric.help, metric.type)
    family.samples = samples
    return family
