"""The shipped rules over OTLP: exporter, receiver, translation to Prometheus, real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.monitoring import Prometheus
from exporter_process import Exporter
from journals import BUILT, ENTERED, READY, REGISTERED, THE_BUG, Worker
from otlp_prometheus import translated
from otlp_receiver import GRPC, Receiver
from prometheus_client import start_http_server

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "hicache-obs.rules.yml"
_OF_THE_WAY = {"job", "instance", "otel_scope_name", "otel_scope_version", "otel_scope_schema_url"}
RECORDED = ("model:hicache_host_pool_bytes:sum", "model:hicache_worker_up:sum")
_STARTED = "sum(hicache_worker_starts_total)"


def _alerts(prometheus: Prometheus) -> dict[frozenset[tuple[str, str]], dict[str, str]]:
    """Labels and annotations of what is pending or firing."""
    return {
        frozenset((k, v) for k, v in alert["labels"].items() if k not in _OF_THE_WAY): {
            name: text for name, text in alert["annotations"].items() if "url" not in name
        }
        for alert in prometheus.alerts()
    }


def test_the_shipped_rules_say_the_same_over_otlp(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    program: Callable[[str, str], str],
    tmp_path: Path,
) -> None:
    program("prometheus", "prometheus")
    journals = tmp_path / "journals"
    worker(directory=journals).write(*THE_BUG, time=time.time()).die()
    worker(directory=journals, port="30001").write(BUILT, ENTERED, time=time.time()).die()
    worker(directory=journals, port="30002").write(BUILT, REGISTERED, READY, time=time.time())
    receiver = Receiver(GRPC)
    one = exporter(f"--journal.dir={journals}", env=receiver.environment)
    server, thread = start_http_server(0, "127.0.0.1", translated(receiver))
    ways = {"hicache-obs": one.port, "otel-collector": server.server_port}
    rules = RULES.read_text().replace("keep_firing_for: 5m", "keep_firing_for: 2s")  # to see an end
    made = [
        Prometheus(
            tmp_path / job,
            [
                {
                    "job_name": job,
                    "honor_labels": True,
                    "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
                }
            ],
            rules=rules,
        )
        for job, port in ways.items()
    ]
    try:
        with made[0] as scraped, made[1] as sent:
            _wait_for_alike(scraped, sent, "foreign_buffer")
            names = {dict(labels)["alertname"] for labels in _alerts(sent)}
            assert {"HiCacheRegistrationFailed", "HiCacheAllocatorMismatch"} <= names
            assert "HiCacheObsExporterAbsent" not in names
            worker(directory=journals).write(BUILT, REGISTERED, READY, time=time.time())
            _wait_for_alike(scraped, sent, "crashed_in_call", gone="foreign_buffer")
            for query in (*RECORDED, _STARTED):
                assert _values(scraped, query) == _values(sent, query) != set(), query
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        receiver.close()


def _values(prometheus: Prometheus, query: str) -> set[tuple[frozenset[tuple[str, str]], str]]:
    return {
        (
            frozenset((k, v) for k, v in row["metric"].items() if k not in _OF_THE_WAY),
            row["value"][1],
        )
        for row in prometheus.query(query)
    }


def _wait_for_alike(scraped: Prometheus, sent: Prometheus, cause: str, gone: str = "none") -> None:
    """Until both have the same alerts, one of *cause* among them and none of a cause *gone*."""
    until = time.monotonic() + 45
    while True:
        ours, theirs = _alerts(scraped), _alerts(sent)
        causes = {dict(labels).get("cause") for labels in ours}
        if ours == theirs and cause in causes and gone not in causes:
            return
        if time.monotonic() > until:
            assert ours == theirs
            pytest.fail(f"{cause} is not, or {gone} still is: {ours.keys()}")
        time.sleep(0.25)
