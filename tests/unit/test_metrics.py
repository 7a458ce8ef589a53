"""The metric table obeys Prometheus's rules and our own."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_obs.metrics import COUNTER, GAUGE, METRICS, WORKER_LABELS, Metric, size_class

each = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
NO_BASE_UNIT = re.compile(
    r"(^|_)(ms|msec|millis\w*|us|ns|minutes|hours|kb|kib|mb|mib|gb|gib|kilobytes|megabytes|percent)(_|$)"
)


def test_the_table_is_not_empty() -> None:
    assert len(METRICS) > 25


def test_names_are_unique() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)


@each
def test_name(metric: Metric) -> None:
    assert re.fullmatch(r"hicache_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
    assert metric.type in (GAUGE, COUNTER)
    assert metric.name.endswith("_total") == (metric.type == COUNTER)
    assert not metric.name.endswith(("_count", "_sum", "_bucket", "_created"))
    assert not NO_BASE_UNIT.search(metric.name)


@each
def test_times_and_durations_say_their_unit(metric: Metric) -> None:
    if "duration" in metric.name:
        assert metric.name.endswith("_seconds")
    if "timestamp" in metric.name or "_since" in metric.name:
        assert metric.name.endswith("_timestamp_seconds")
    for unit in ("seconds", "bytes"):
        assert unit not in metric.name or metric.name.endswith(unit)


@each
def test_labels(metric: Metric) -> None:
    assert len(metric.labels) <= 14
    assert len(set(metric.labels)) == len(metric.labels)
    assert not set(metric.labels) & set(WORKER_LABELS)
    for label in metric.labels:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", label)
        assert label not in ("le", "quantile", "job", "instance", "host", "namespace", "pod")
        assert label not in ("address", "pointer", "path", "key", "prompt", "pid")


@each
def test_help(metric: Metric) -> None:
    assert metric.help.endswith(".")
    assert len(metric.help) > 10
    assert "\n" not in metric.help


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (-1, "0"),
        (0, "0"),
        (1, "1B"),
        (2, "2B"),
        (3, "4B"),
        (512, "512B"),
        (513, "1KiB"),
        (1024, "1KiB"),
        (1025, "2KiB"),
        (64 << 20, "64MiB"),
        ((64 << 20) + 1, "128MiB"),
        (1 << 30, "1GiB"),
        (9 << 30, "16GiB"),
        (1 << 40, "1TiB"),
        (1 << 50, "1PiB"),
        (1 << 60, "1024PiB"),
    ],
)
def test_size_class(size: int, name: str) -> None:
    assert size_class(size) == name


UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50}


@given(st.integers(1, 1 << 62))
def test_size_class_is_the_smallest_power_of_two_that_holds_it(size: int) -> None:
    match = re.fullmatch(r"(\d+)(\w+)", size_class(size))
    assert match is not None
    holds = int(match[1]) << UNITS[match[2]]
    assert holds.bit_count() == 1
    assert holds // 2 < size <= holds
