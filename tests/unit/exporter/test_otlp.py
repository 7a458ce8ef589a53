"""The exporter over OTLP: to a real receiver that is up, down, slow or refusing."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exporter_process import Exporter
from journals import (
    BUILT,
    ENTERED,
    FAILED,
    MISMATCH,
    READY,
    REFUSED,
    REGISTERED,
    THE_BUG,
    Worker,
    served,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from otlp_receiver import FAIL, GRPC, HANG, HTTP, REFUSE, TAKE, Receiver, plain

from hicache_obs import __version__
from hicache_obs import events as ev
from hicache_obs import metrics as m
from hicache_obs.exporter.host import Host

BOTH = pytest.mark.parametrize("protocol", [HTTP, GRPC])
FAILED_ROW = r'hicache_failure_active\{.*cause="foreign_buffer".*\} 1'


@pytest.fixture
def receiver() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(protocol: str = HTTP, behaviour: str = TAKE) -> Receiver:
        made.append(Receiver(protocol, behaviour))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _has_failure(there: Receiver) -> bool:
    return bool(there.metrics) and any(
        value and dict(labels)["cause"] == "foreign_buffer"
        for labels, value in there.values().get("hicache_failure_active", {}).items()
    )


def _root(there: Receiver) -> Any:
    return next((span for span in there.spans() if span.name == "start"), None)


@BOTH
def test_every_row_is_a_point(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    host: Callable[..., Host],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
    protocol: str,
) -> None:
    worker().write(*THE_BUG).die()
    worker(port="30001", pod="pod-1", namespace="llm").write(BUILT, REGISTERED, READY)
    there = receiver(protocol)
    one = exporter(f"--journal.dir={tmp_path}", env=there.environment)
    one.wait_for(FAILED_ROW)
    there.wait(_has_failure)
    beside = host(keep=False)
    sent = there.values()
    rows = {name.removesuffix("_total"): rows for name, rows in served(beside).items()}
    assert sent.keys() == rows.keys()
    for name, found in rows.items():
        if not name.startswith("hicache_obs_journal_lines"):
            assert sent[name] == found, name


@BOTH
def test_types_units_and_the_resource(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
    protocol: str,
) -> None:
    worker().write(*THE_BUG).die()
    there = receiver(protocol)
    asked = {
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,host.name=gpu-7",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20let-me-in",
    }
    exporter(f"--journal.dir={tmp_path}", env=there.environment | asked)
    there.wait(_has_failure)
    there.wait(lambda there: there.traces)
    (of_metrics,) = there.metrics[-1].resource_metrics
    (of_traces,) = there.traces[-1].resource_spans
    for origin in (of_metrics, of_traces):
        attributes = plain(origin.resource.attributes)
        sdk = {name for name in attributes if name.startswith("telemetry.sdk.")}
        assert {k: v for k, v in attributes.items() if k not in sdk} == {
            "service.name": "hicache-obs",
            "service.version": __version__,
            "service.instance.id": socket.gethostname(),
            "host.name": "gpu-7",
            "deployment.environment.name": "prod",
        }
    assert there.headers["authorization"] == "Bearer let-me-in"
    (scope,) = of_metrics.scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("hicache_obs", __version__)
    units = {metric.name: metric.unit for metric in scope.metrics}
    assert units["hicache_registration_last_failure_bytes"] == "By"
    assert units["hicache_registration_last_failure_timestamp_seconds"] == "s"
    assert units["hicache_failure_active"] == ""
    counted = next(each for each in scope.metrics if each.name == "hicache_registrations").sum
    assert counted.is_monotonic
    assert (
        counted.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )


def test_counting_began_before_the_exporter_was_restarted(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
) -> None:
    worker().write(*THE_BUG).die()

    def began() -> tuple[set[int], float]:
        there = receiver()
        one = exporter(f"--journal.dir={tmp_path}", env=there.environment)
        there.wait(_has_failure)
        one.end(signal.SIGTERM)
        (scope,) = there.metrics[-1].resource_metrics[0].scope_metrics
        points = [p for each in scope.metrics for p in each.sum.data_points]
        (count,) = there.values()["hicache_registrations"].values()
        return {point.start_time_unix_nano for point in points}, count

    first = began()
    assert len(first[0]) == 1
    assert began() == first


@BOTH
def test_a_start_that_failed_is_a_trace(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
    protocol: str,
) -> None:
    run = worker(tp="3", model_name="m").write(*THE_BUG, time=1_700_000_103.0).die()
    there = receiver(protocol)
    exporter(f"--journal.dir={tmp_path}", env=there.environment)
    there.wait(_root)
    spans = {span.name: span for span in there.spans()}
    assert spans.keys() == {"start", "construct host pool", "register buffer"}
    root, registration = spans["start"], spans["register buffer"]
    assert {span.trace_id for span in spans.values()} == {root.trace_id}
    assert not root.parent_span_id
    assert registration.parent_span_id == root.span_id
    attributes = plain(registration.attributes)
    assert (
        attributes.items()
        >= {
            "model_name": "m",
            "tp_rank": "3",
            "server_port": "30000",
            "role": "draft",
            "pool": "draft",
            "bytes": 1114112,
            "allocator": "default",
            "code": "-1",
            "cause": "foreign_buffer",
        }.items()
    )
    assert "address" not in attributes
    assert registration.status.code == Status.STATUS_CODE_ERROR
    assert "foreign_buffer" in registration.status.message
    for span in (root, registration):
        error = next(event for event in span.events if event.name == "exception")
        assert plain(error.attributes) == {
            "exception.type": REFUSED.error_type,
            "exception.message": REFUSED.error,
        }
    (mismatch,) = (event for event in root.events if event.name == "allocator mismatch")
    assert plain(mismatch.attributes)["expected"] == MISMATCH.expected
    assert root.status.code == Status.STATUS_CODE_ERROR
    told = plain(root.attributes)
    assert told["run"] == run.name
    assert (told["outcome"], told["stage"], told["cause"]) == (
        "failure",
        "registration",
        "foreign_buffer",
    )
    assert root.start_time_unix_nano == run.started.boottime_ns + 1_700_000_000 * 10**9
    assert root.end_time_unix_nano == 1_700_000_103 * 10**9


def test_a_start_that_got_ready_and_what_it_did_later(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
) -> None:
    there = receiver()
    exporter(f"--journal.dir={tmp_path}", env=there.environment)
    run = worker().write(BUILT, ENTERED, replace(REGISTERED, duration_s=2.0), READY)
    there.wait(_root)
    root = _root(there)
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert plain(root.attributes)["outcome"] == "success"
    registered = next(span for span in there.spans() if span.name == "register buffer")
    assert registered.end_time_unix_nano - registered.start_time_unix_nano == 2 * 10**9
    assert registered.status.code == Status.STATUS_CODE_UNSET
    attach = ev.BackendAttached(
        outcome="failure", error_type="ValueError", error="no", backend="mooncake", cause="setting"
    )
    run.write(attach)
    there.wait(lambda there: any("attach" in span.name for span in there.spans()))
    later = next(span for span in there.spans() if "attach" in span.name)
    assert (later.trace_id, later.parent_span_id) == (root.trace_id, root.span_id)
    assert later.status.code == Status.STATUS_CODE_ERROR
    run.die()
    assert [span.name for span in there.spans()].count("start") == 1


def test_a_death_in_a_call_is_a_span_that_failed(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
) -> None:
    there = receiver()
    exporter(f"--journal.dir={tmp_path}", env=there.environment)
    worker().write(BUILT, ENTERED).die()
    there.wait(_root)
    call = next(span for span in there.spans() if span.name == "register_buffer")
    assert call.start_time_unix_nano == 999 * 10**9
    assert call.status.code == Status.STATUS_CODE_ERROR
    assert plain(call.attributes)["cause"] == "crashed_in_call"
    assert _root(there).status.code == Status.STATUS_CODE_ERROR
    assert plain(_root(there).attributes)["cause"] == "crashed_in_call"


def test_a_stop_is_no_failure(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
) -> None:
    there = receiver()
    exporter(f"--journal.dir={tmp_path}", env=there.environment)
    worker().write(BUILT).die()
    there.wait(_root)
    assert {span.status.code for span in there.spans()} == {Status.STATUS_CODE_UNSET}
    assert plain(_root(there).attributes)["outcome"] == "unfinished"


def test_a_start_is_the_same_trace_after_a_restart_and_told_once_when_it_has_ended(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
) -> None:
    dead = worker().write(*THE_BUG).die()
    worker(port="30001").write(BUILT, READY)

    def told() -> dict[str, tuple[bytes, bytes]]:
        there = receiver()
        one = exporter(f"--journal.dir={tmp_path}", env=there.environment)
        there.wait(_has_failure)
        there.wait(_root)
        one.end(signal.SIGTERM)
        return {
            plain(span.attributes)["run"]: (span.trace_id, span.span_id)
            for span in there.spans()
            if span.name == "start"
        }

    first, again = told(), told()
    assert first.pop(dead.name)
    assert again == first


@BOTH
@pytest.mark.parametrize("behaviour", [REFUSE, FAIL, HANG, "down"])
def test_a_receiver_that_takes_nothing_harms_no_scrape(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
    protocol: str,
    behaviour: str,
) -> None:
    there = receiver(protocol, behaviour)
    if behaviour == "down":
        there.close()
    one = exporter(f"--journal.dir={tmp_path}", env=there.environment)
    if behaviour != "down":
        there.wait(lambda there: there.asked)
    worker().write(*THE_BUG).die()
    one.wait_for(FAILED_ROW)  # while an export waits for its answer
    for signal_name in ("metrics", "traces"):
        where = f'hicache_obs_errors_total{{where="exporter_otlp_{signal_name}"}}'
        one.wait_for(f"{where} [1-9]", seconds=20)
    assert one.get("/-/healthy") == (200, "healthy\n")
    assert "could not be sent over OTLP" in one.get("/")[1]
    assert sum("metrics could not be sent over OTLP" in line for line in one.log) == 1
    assert one.end(signal.SIGTERM) == 0


def test_a_receiver_that_comes_back_gets_everything(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
) -> None:
    there = receiver(behaviour=FAIL)
    exporter(f"--journal.dir={tmp_path}", env=there.environment)
    worker().write(*THE_BUG).die()
    there.wait(lambda there: there.asked)
    there.behaviour = TAKE
    there.wait(_has_failure)
    there.wait(_root)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"),
        ({"OTEL_METRICS_EXPORTER": "console"}, "OTEL_METRICS_EXPORTER=console is not known here"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "1m"}, "OTEL_METRIC_EXPORT_INTERVAL=1m is no number"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
            "metrics cannot be sent over OTLP: could not convert string to float: 'soon'",
        ),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "traces cannot be sent over OTLP"),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"},
            "TEMPORALITY_PREFERENCE=delta is not followed",
        ),
    ],
)
def test_a_bad_setting_is_told_and_scraping_goes_on(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
    given: dict[str, str],
    told: str,
) -> None:
    worker().write(*THE_BUG).die()
    one = exporter(f"--journal.dir={tmp_path}", env=receiver().environment | given)
    one.wait_for(FAILED_ROW)
    one.wait_for(r'hicache_obs_errors_total\{where="exporter_otlp_\w+"\} [1-9]', seconds=10)
    assert told in "\n".join(one.log)


def test_nothing_is_sent_unless_it_is_asked_for(
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    receiver: Callable[..., Receiver],
    tmp_path: Path,
) -> None:
    worker().write(*THE_BUG).die()
    there = receiver()
    off = exporter(
        f"--journal.dir={tmp_path}", env=there.environment | {"OTEL_SDK_DISABLED": "true"}
    )
    off.wait_for(FAILED_ROW)
    assert off.end(signal.SIGTERM) == 0
    traces = exporter(
        f"--journal.dir={tmp_path}", env=there.environment | {"OTEL_METRICS_EXPORTER": "none"}
    )
    traces.wait_for(FAILED_ROW)
    worker(port="30001").write(READY)
    there.wait(_root)
    assert not there.metrics


def test_without_the_extra_one_line_says_what_to_install(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    script = """
import sys
sys.modules["opentelemetry.sdk"] = None
from pathlib import Path
from hicache_obs.cli.exporter import _send
from hicache_obs.exporter.host import Host
host = Host([Path(sys.argv[1])])
_send(host)()
print(*host.problems.told())
"""
    told = run_python(script, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert "pip install 'hicache-obs[otel]'" in told


def test_unless_it_is_asked_for_opentelemetry_is_not_imported(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    script = """
import sys
from pathlib import Path
from hicache_obs.cli.exporter import _send
from hicache_obs.exporter.host import Host
_send(Host([Path(sys.argv[1])]))()
print(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    assert run_python(script, tmp_path) == "False\n"


def test_what_failed_to_listen_is_counted(worker: Callable[..., Worker], tmp_path: Path) -> None:
    def listen(*_: object) -> None:
        raise RuntimeError("I cannot hear")

    worker().write(FAILED).die()
    one = Host([tmp_path])
    one.listener = listen
    one.refresh()
    one.close()
    assert one.problems.counts()["listener"] >= 2
    assert any(row.metric is m.WORKER_STARTS for row in one.view.rows)
