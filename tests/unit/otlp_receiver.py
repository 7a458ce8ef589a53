"""A receiver of OTLP: the protocol's own services over gRPC and HTTP, which can misbehave."""

from __future__ import annotations

import gzip
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

GRPC, HTTP = "grpc", "http/protobuf"
TAKE, REFUSE, FAIL, HANG = "take", "refuse", "fail", "hang"
"""What a receiver does: take, refuse for good, ask to try again later, or not answer."""


class Receiver:
    """Takes what is sent by *protocol*, or does what *behaviour* says."""

    def __init__(self, protocol: str, behaviour: str = TAKE) -> None:
        self.protocol, self.behaviour = protocol, behaviour
        self.metrics: list[metrics_pb.ExportMetricsServiceRequest] = []
        self.traces: list[trace_pb.ExportTraceServiceRequest] = []
        self.asked = 0
        self.headers: dict[str, str] = {}
        self._ended = threading.Event()
        self._server = _over_grpc(self) if protocol == GRPC else _over_http(self)

    @property
    def environment(self) -> dict[str, str]:
        """Settings by which an exporter sends here, often."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def take(self, request: Any) -> bool:
        """Keep *request*, unless it is refused; a receiver that hangs says nothing for 30 s."""
        self.asked += 1
        if self.behaviour == HANG:
            self._ended.wait(30)
        if self.behaviour == TAKE:
            kept: list[Any] = self.metrics if hasattr(request, "resource_metrics") else self.traces
            kept.append(request)
        return self.behaviour == TAKE

    def close(self) -> None:
        self._ended.set()
        self._server.stop()

    # What was taken

    def values(self, at: int = -1) -> dict[str, dict[frozenset[tuple[str, Any]], float]]:
        """Name, attributes and value of the points of one export."""
        return {
            metric.name: {
                frozenset(plain(point.attributes).items()): number(point)
                for point in (metric.gauge.data_points or metric.sum.data_points)
            }
            for resource in self.metrics[at].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait(self, condition: Any, seconds: float = 10) -> None:
        """Until *condition*, called with this receiver, holds."""
        until = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < until, (self.asked, len(self.metrics), self.spans())
            time.sleep(0.02)


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one) for one in attributes}


def _value(one: KeyValue) -> Any:
    return getattr(one.value, one.value.WhichOneof("value"))


def number(point: NumberDataPoint) -> float:
    return float(getattr(point, point.WhichOneof("value")))


class _Grpc:
    def __init__(self, server: grpc.Server) -> None:
        self._server = server
        self.port = server.add_insecure_port("127.0.0.1:0")
        server.start()

    def stop(self) -> None:
        self._server.stop(None).wait(5)


def _over_grpc(receiver: Receiver) -> _Grpc:
    def answer(request: Any, context: grpc.ServicerContext, response: Any) -> Any:
        receiver.headers = {k: str(v) for k, v in context.invocation_metadata()}
        if not receiver.take(request):
            code = grpc.StatusCode.UNAVAILABLE
            if receiver.behaviour == REFUSE:
                code = grpc.StatusCode.PERMISSION_DENIED
            context.abort(code, "not today")
        return response

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
            return answer(request, context, metrics_pb.ExportMetricsServiceResponse())

    class Traces(trace_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
            return answer(request, context, trace_pb.ExportTraceServiceResponse())

    server = grpc.server(ThreadPoolExecutor(4))
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    trace_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    return _Grpc(server)


class _Http:
    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


_REQUESTS = {
    "/v1/metrics": metrics_pb.ExportMetricsServiceRequest,
    "/v1/traces": trace_pb.ExportTraceServiceRequest,
}


def _over_http(receiver: Receiver) -> _Http:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.headers = {k.lower(): v for k, v in self.headers.items()}
            request = _REQUESTS[self.path]()
            request.ParseFromString(body)
            taken = receiver.take(request)
            status = 200 if taken else 403 if receiver.behaviour == REFUSE else 503
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                pass  # the sender did not wait

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the tests read what was taken."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    return _Http(server)
