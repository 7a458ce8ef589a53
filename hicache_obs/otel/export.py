"""Sends what the exporter knows over OTLP, in threads of its own: scraping waits for none.

What cannot be sent is counted and dropped; the next export of metrics holds everything again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from hicache_obs import __version__
from hicache_obs.exporter.host import Host
from hicache_obs.otel.points import points
from hicache_obs.otel.settings import GRPC, METRICS, Settings
from hicache_obs.otel.starts import Identifiers, Starts

STOP_S = 5.0
"""Longest time that a stop waits for what is still to be sent, seconds."""
_SCOPE = "hicache_obs"
_FIRST_S = 1.0
_GOES_ON = "scraping goes on; the lines before say why"


def resource(hostname: str) -> Resource:
    """The exporter and its host, and what ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME``
    say. Nothing of a worker: translations make ``target_info`` of it, not labels."""
    own = {
        "service.name": "hicache-obs",
        "service.version": __version__,
        "service.instance.id": hostname,
        "host.name": hostname,
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())


class Metrics:
    """Sends the host's rows every *interval_s* seconds, first after a second."""

    def __init__(
        self, host: Host, exporter: MetricExporter, interval_s: float, origin: Resource
    ) -> None:
        self._host, self._exporter, self._interval_s = host, exporter, interval_s
        self._origin = origin
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hicache-obs-otlp", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send once more and end."""
        self._stopped.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        wait = min(_FIRST_S, self._interval_s)
        while not self._stopped.wait(wait):
            self._send()
            wait = self._interval_s
        self._send()

    def _send(self) -> None:
        view = self._host.view
        if not view.rows:  # nothing was read yet
            return
        scope = InstrumentationScope(_SCOPE, __version__)
        try:
            sent = self._exporter.export(points(view, self._host.since, self._origin, scope))
            why = "" if sent is MetricExportResult.SUCCESS else "it was not taken"
        except Exception as error:  # noqa: BLE001 - whatever it is, the next export may succeed
            why = repr(error)
        if why:
            text = f"metrics could not be sent over OTLP ({why}): {_GOES_ON}"
            self._host.problems.count("otlp_metrics", text)


class _Counted(SpanExporter):
    """Counts what *exporter* could not send."""

    def __init__(self, exporter: SpanExporter, failed: Callable[[], None]) -> None:
        self._exporter, self._failed = exporter, failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self._failed()
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Traces:
    """Sends each start that the host reads as a trace."""

    def __init__(self, host: Host, exporter: SpanExporter, origin: Resource) -> None:
        def failed() -> None:
            text = f"starts could not be sent over OTLP: {_GOES_ON}"
            host.problems.count("otlp_traces", text)

        identifiers = Identifiers()
        self._provider = TracerProvider(
            resource=origin, id_generator=identifiers, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Counted(exporter, failed)))
        host.listener = Starts(self._provider.get_tracer(_SCOPE, __version__), identifiers)

    def stop(self) -> None:
        self._provider.shutdown()


def start(host: Host, settings: Settings, hostname: str) -> Callable[[], None]:
    """Send what *settings* ask for, until the function returned is called.

    A signal whose exporter cannot be made (a certificate that is not there, a time-out that is
    no number) is a problem of *host*; the other is sent.
    """
    origin = resource(hostname)
    senders: list[Metrics | Traces] = []
    for signal, protocol in settings.protocols.items():
        try:
            if signal == METRICS:
                exporter = _metric_exporter(protocol)
                senders.append(Metrics(host, exporter, settings.interval_s, origin))
            else:
                senders.append(Traces(host, _span_exporter(protocol), origin))
        except Exception as error:  # noqa: BLE001 - OTEL_* settings are read in there
            text = f"{signal} cannot be sent over OTLP: {error}; look at the OTEL_* settings"
            host.problems.notice(f"otlp_{signal}", text, text)

    def stop() -> None:
        threads = [threading.Thread(target=each.stop, daemon=True) for each in senders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(STOP_S)

    return stop


def _metric_exporter(protocol: str) -> MetricExporter:
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
            OTLPMetricExporter as OverGrpc,
        )

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def _span_exporter(protocol: str) -> SpanExporter:
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as OverGrpc,
        )

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
