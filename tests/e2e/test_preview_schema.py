"""The schema check of the dashboards, on the real types of ``@grafana/schema``: it can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preview.preview import check_schema

JSON = Path(__file__).resolve().parents[2] / "dashboards" / "json"
pytestmark = pytest.mark.full


def test_the_committed_dashboards_are_taken(modules: Path) -> None:
    assert check_schema(modules, sorted(JSON.glob("*.json"))) == []


def stat(board: dict[str, Any]) -> dict[str, Any]:
    return next(panel for panel in board["panels"] if panel["type"] == "stat")


def graph(board: dict[str, Any]) -> dict[str, Any]:
    return next(panel for panel in board["panels"] if panel["type"] == "timeseries")


MUTANTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a title that is a number": (lambda b: b.update(title=5), "/title"),
    "no schema version": (lambda b: b.pop("schemaVersion"), "schemaVersion"),
    "an unknown key": (lambda b: b.update(colour="red"), "colour"),
    "variables that are no list": (lambda b: b["templating"].update(list="x"), "/templating/list"),
    "a width that is a text": (lambda b: stat(b)["gridPos"].update(w="x"), "/gridPos/w"),
    "a unit that is a number": (
        lambda b: stat(b)["fieldConfig"]["defaults"].update(unit=3),
        "/fieldConfig/defaults/unit",
    ),
    "an unknown colour mode": (lambda b: stat(b)["options"].update(colorMode="x"), "/colorMode"),
    "an unknown option": (lambda b: stat(b)["options"].update(colour=1), "/options"),
    "an unknown style": (
        lambda b: graph(b)["fieldConfig"]["defaults"]["custom"].update(drawStyle="x"),
        "/drawStyle",
    ),
    "an unknown kind of panel": (lambda b: stat(b).update(type="pie"), "no panel of kind pie"),
    "a panel without a title": (lambda b: stat(b).update(title=""), "without a title"),
    "a query without an expression": (
        lambda b: stat(b)["targets"][0].update(expr=""),
        "without an expression",
    ),
}


@pytest.mark.parametrize(("change", "told"), MUTANTS.values(), ids=MUTANTS)
def test_a_mistake_is_named(
    modules: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], told: str
) -> None:
    board = json.loads((JSON / "hicache-fleet.json").read_text())
    change(board)
    path = tmp_path / "mutant.json"
    path.write_text(json.dumps(board))
    problems = check_schema(modules, [path])
    assert any(told in problem for problem in problems)
    assert all(problem.startswith("mutant.json: /") for problem in problems)
