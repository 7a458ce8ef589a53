"""Failure kinds of single calls and pools: what SGLang does, what is told of it, what pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario import Scenario
from told import check, check_alone, walks_of
from walk import Walks


@pytest.mark.parametrize(("scenario", "release"), walks_of("store", "pool", "path"))
def test_the_kind_is_told(
    walks: Walks, promtool: str, tmp_path: Path, scenario: Scenario, release: str
) -> None:
    check(walks, scenario, release, promtool, tmp_path)


@pytest.mark.parametrize(("scenario", "release"), walks_of("store", "pool", "path"))
def test_sglang_does_the_same_without_the_plug_in(
    walks: Walks, scenario: Scenario, release: str
) -> None:
    check_alone(walks, scenario, release)
