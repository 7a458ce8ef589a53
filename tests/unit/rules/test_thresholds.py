"""The thresholds: every number of the rules, in one place, within its range."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

import pytest

from hicache_obs.durations import seconds, text
from hicache_obs.rules.thresholds import ThresholdError, Thresholds


def test_changes_are_put_in_and_the_rest_stays() -> None:
    changed = Thresholds().with_changes(["scrape_gap=90s", "crash_loop_starts=5", "skew_for=0s"])
    assert (changed.scrape_gap, changed.crash_loop_starts, changed.skew_for) == (90, 5, 0)
    assert changed.with_changes(["scrape_gap=5m", "crash_loop_starts=3", "skew_for=1h"]) == (
        Thresholds()
    )


@pytest.mark.parametrize("field", fields(Thresholds), ids=lambda field: field.name)
def test_both_ends_of_each_range_are_taken_and_nothing_beyond(field: Field[Any]) -> None:
    low, high = field.metadata["range"]
    for value in (low, high):
        assert getattr(Thresholds(**{field.name: value}), field.name) == value
    for value in (low - 1, high + 1, float("nan")):
        with pytest.raises(ThresholdError, match=f"threshold {field.name}: "):
            Thresholds(**{field.name: value})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("gap=5m", "threshold 'gap=5m': give NAME=VALUE, with one of scrape_gap, "),
        ("scrape_gap", "threshold 'scrape_gap': give NAME=VALUE"),
        ("=5m", "threshold '=5m': give NAME=VALUE"),
        ("scrape_gap=", "threshold scrape_gap: '' is no duration such as 30s, 5m or 1h"),
        ("scrape_gap=5", "threshold scrape_gap: '5' is no duration"),
        ("scrape_gap=1h30m", "threshold scrape_gap: '1h30m' is no duration"),
        ("scrape_gap=\u0665m", "threshold scrape_gap: '\u0665m' is no duration"),
        ("crash_loop_starts=3.5", "threshold crash_loop_starts: '3.5' is no whole number"),
        ("host_memory_ratio=x", "threshold host_memory_ratio: 'x' is no number"),
        ("host_memory_ratio=nan", "threshold host_memory_ratio: nan is not between"),
        ("scrape_gap=2h", "threshold scrape_gap: 2h is not between 0s and 1h"),
    ],
)
def test_a_bad_change_is_named(change: str, told: str) -> None:
    with pytest.raises(ThresholdError) as caught:
        Thresholds().with_changes([change])
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("duration", ["0s", "90s", "5m", "36h", "7d"])
def test_durations_are_written_as_they_are_read(duration: str) -> None:
    length = seconds(duration)
    assert length is not None
    assert text(length) == duration
