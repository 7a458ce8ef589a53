"""The exporter's view as OpenTelemetry's data points.

The SDK's instruments are not used: each keeps every set of attributes that it ever saw, and at
most 2000 of them, while rows of the exporter go. What its readers hand to an exporter is made
here instead, from the rows that ``/metrics`` serves.

Names are those of the metric table without ``_total``, which translations to Prometheus add to
what is a monotonic sum. A unit is told only where the name ends in it, so that it is not added
once more; and none on the others, where a translation would add ``_ratio`` for ``1``
(https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/).
"""

from __future__ import annotations

import time
from collections import defaultdict

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from hicache_obs import metrics as m
from hicache_obs.exporter.host import View

_UNITS = {"_bytes": "By", "_seconds": "s"}


def points(
    view: View, since: float, resource: Resource, scope: InstrumentationScope
) -> MetricsData:
    """Every row of *view* as a point, now. *since* when is counted: seconds since the epoch."""
    now, began = time.time_ns(), int(since * 1e9)
    found: dict[m.Metric, list[NumberDataPoint]] = defaultdict(list)
    for metric, _, labels, value in view.rows:
        start = began if metric.type == m.COUNTER else 0
        found[metric].append(NumberDataPoint(labels, start, now, value))
    metrics = [_metric(metric, each) for metric, each in found.items()]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(metric: m.Metric, found: list[NumberDataPoint]) -> Metric:
    name, data = metric.name, Gauge(found)
    if metric.type == m.COUNTER:
        name = name.removesuffix("_total")
        counted = Sum(found, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return Metric(name, metric.help, "", counted)
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return Metric(name, metric.help, unit, data)
