"""From OTLP to Prometheus by OpenTelemetry's own translation, from what a receiver took."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from otlp_receiver import Receiver, number, plain
from prometheus_client import CollectorRegistry


def translated(receiver: Receiver) -> CollectorRegistry:
    """A registry that holds the newest export that *receiver* took, whenever it is collected."""
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    # As a MeterProvider does; the data are those of the wire instead.
    reader._set_collect_callback(lambda *_, **__: _decoded(receiver))
    return registry


def _decoded(receiver: Receiver) -> sdk.MetricsData | None:
    if not receiver.metrics:
        return None
    return sdk.MetricsData(
        [
            sdk.ResourceMetrics(
                Resource(plain(one.resource.attributes)),
                [
                    sdk.ScopeMetrics(
                        InstrumentationScope(scope.scope.name, scope.scope.version),
                        [_metric(metric) for metric in scope.metrics],
                        "",
                    )
                    for scope in one.scope_metrics
                ],
                "",
            )
            for one in receiver.metrics[-1].resource_metrics
        ]
    )


def _metric(found: object) -> sdk.Metric:
    kind = found.WhichOneof("data")  # type: ignore[attr-defined]  # a message of protobuf
    data = getattr(found, kind)
    points = [
        sdk.NumberDataPoint(
            plain(point.attributes), point.start_time_unix_nano, point.time_unix_nano, number(point)
        )
        for point in data.data_points
    ]
    if kind == "gauge":
        made: sdk.Gauge | sdk.Sum = sdk.Gauge(points)
    else:
        temporality = sdk.AggregationTemporality(data.aggregation_temporality)
        made = sdk.Sum(points, temporality, data.is_monotonic)
    return sdk.Metric(found.name, found.description, found.unit, made)  # type: ignore[attr-defined]
