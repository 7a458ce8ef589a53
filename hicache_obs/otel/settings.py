"""What the standard ``OTEL_*`` variables ask for.

Only what chooses between signals and protocols is read here; endpoints, headers, certificates,
time-outs, intervals and queues are read by OpenTelemetry's own exporters
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

METRICS, TRACES = "metrics", "traces"
GRPC, HTTP = "grpc", "http/protobuf"
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
INTERVAL_S = 60.0
"""Default of ``OTEL_METRIC_EXPORT_INTERVAL``, seconds."""


@dataclass(frozen=True)
class Settings:
    """The protocol of each signal that is sent, the seconds between two exports of metrics, and
    a sentence on each setting that cannot be followed."""

    protocols: Mapping[str, str]
    interval_s: float = INTERVAL_S
    problems: tuple[str, ...] = ()


def read(environment: Mapping[str, str]) -> Settings:
    """What *environment* asks for: nothing is sent unless an endpoint, or the exporter ``otlp``,
    is named in it."""
    problems: list[str] = []
    protocols = {}
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
        for signal in (METRICS, TRACES):
            protocol = _protocol(signal, environment, problems)
            if protocol:
                protocols[signal] = protocol
    interval_s = INTERVAL_S
    if METRICS in protocols:
        interval_s = _interval(environment, problems)
        _check_temporality(environment, problems)
    return Settings(protocols, interval_s, tuple(problems))


def _protocol(signal: str, environment: Mapping[str, str], problems: list[str]) -> str:
    """The protocol that *signal* is sent by, "" if it is not."""
    upper = signal.upper()
    _, asked = _first(environment, f"OTEL_{upper}_EXPORTER")
    _, endpoint = _first(
        environment, f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    exporters = {word.strip() for word in asked.split(",")} if asked else {"otlp"}
    if "none" in exporters or not (asked or endpoint):
        return ""
    if "otlp" not in exporters:
        problems.append(
            f"OTEL_{upper}_EXPORTER={asked} is not known here; write otlp or none "
            f"({signal} are not sent by OpenTelemetry)"
        )
        return ""
    name, protocol = _first(
        environment, f"OTEL_EXPORTER_OTLP_{upper}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if protocol not in ("", GRPC, HTTP):
        problems.append(
            f"{name}={protocol} is not known here; write {HTTP} or {GRPC} "
            f"({signal} are not sent by OpenTelemetry)"
        )
        return ""
    return protocol or HTTP


def _interval(environment: Mapping[str, str], problems: list[str]) -> float:
    _, text = _first(environment, _INTERVAL)
    if not text:
        return INTERVAL_S
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text) / 1000
    problems.append(
        f"{_INTERVAL}={text} is no number of milliseconds above 0; {INTERVAL_S:g} s are used"
    )
    return INTERVAL_S


def _check_temporality(environment: Mapping[str, str], problems: list[str]) -> None:
    _, asked = _first(environment, _TEMPORALITY)
    if asked.lower() not in ("", "cumulative"):
        problems.append(
            f"{_TEMPORALITY}={asked} is not followed: sums are cumulative; let a collector make "
            "deltas of them (cumulativetodelta)"
        )


def _first(environment: Mapping[str, str], *names: str) -> tuple[str, str]:
    """Name and value of the first of *names* that is set to something."""
    for name in names:
        value = environment.get(name, "").strip()
        if value:
            return name, value
    return names[-1], ""
