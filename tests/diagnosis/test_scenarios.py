"""Each failure kind on the real thing: what SGLang does, what is told of it, what pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from scenario import SCENARIOS, WAYS, Scenario, load, load_all
from told import FAILURE, alerts, rows_of, standing
from walk import Walks


def walks_of(*ways: str) -> list[Any]:
    """Parameters: ``make test`` takes those of the sample whose way is in *ways*."""
    return [
        pytest.param(
            scenario,
            release,
            marks=() if release == scenario.sample and scenario.way in ways else pytest.mark.full,
            id=f"{scenario.name}-{release}",
        )
        for scenario in load_all()
        for release in scenario.releases
    ]


@pytest.mark.parametrize(("scenario", "release"), walks_of(*WAYS))
def test_the_kind_is_told(
    walks: Walks, promtool: str, tmp_path: Path, scenario: Scenario, release: str
) -> None:
    walked = walks.walk(scenario, release, observed=True)
    rows = rows_of(walked)
    told = scenario.told

    found = standing(rows, FAILURE)
    if told.cause:
        assert any(told.failure.items() <= each.items() for each in found), (
            f"{[{k: each.get(k) for k in told.failure} for each in found]}\n{walked.log[-1500:]}"
        )
    else:
        assert found == []
    if told.series:
        assert standing(rows, told.series, told.labels), standing(rows, told.series)
    assert alerts(rows, promtool, tmp_path) == set(told.alerts)


@pytest.mark.parametrize(("scenario", "release"), walks_of("store", "pool", "path"))
def test_sglang_does_the_same_without_the_plug_in(
    walks: Walks, scenario: Scenario, release: str
) -> None:
    alone = walks.walk(scenario, release, observed=False)
    assert list(alone.state.glob("*.jsonl")) == []
    assert alone.did == walks.walk(scenario, release, observed=True).did


def test_there_are_as_many_kinds_as_promised() -> None:
    stand_ins = [bool(scenario.stand_in) for scenario in load_all()]
    assert stand_ins.count(False) >= 20
    assert stand_ins.count(True) >= 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cause =", "reason ="), "reason"),
        (('"foreign_buffer"', '"gremlins"'), "gremlins"),
        (('sample = "0.5.14"', 'sample = "0.5.23"'), "sample"),
        (('"0.5.13", "0.5.14"', '"0.5.13", "0.5.99"'), "0.5.99"),
        (('way = "server"', 'way = "on foot"'), "on foot"),
        (("kind =", "kind"), "line 1"),
    ],
)
def test_a_bad_file_is_named_and_told_why(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text((SCENARIOS / "draft_default_allocator.toml").read_text().replace(*change))
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        load(bad)
    assert str(bad) in str(raised.value)
