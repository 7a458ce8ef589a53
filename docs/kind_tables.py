"""Which failure kinds are told on which release: the table of ``docs/diagnosis.md``.

Made from the scenarios of ``tests/diagnosis``, each of which is walked on the releases it names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / "sglang"), str(TESTS / "diagnosis")]

from bench.harness import RELEASES  # noqa: E402 - found by the line above
from hook_tables import table  # noqa: E402
from scenario import Scenario, load_all  # noqa: E402

TOLD, SAME, NEVER = "●", "", "no"


def kinds(which: str) -> str:
    """The kinds of *which* (``real`` or ``stand-in``), a row each, a column a release."""
    rows = []
    for scenario in load_all():
        if bool(scenario.stand_in) is (which == "stand-in"):
            marks = " | ".join(_mark(scenario, release) for release in RELEASES)
            rows.append(f"| {_kind(scenario)} | {_told(scenario)} | {marks} |")
    releases = " | ".join(release.removesuffix(".post1") for release in RELEASES)
    return table(f"| kind | told as | {releases} |", rows)


def why_not() -> str:
    """The kinds that cannot be on every release, and why."""
    rows = [f"| {s.kind} | {s.elsewhere} |" for s in load_all() if s.elsewhere]
    return table("| kind | elsewhere |", rows)


def _mark(scenario: Scenario, release: str) -> str:
    if release in scenario.releases:
        return TOLD
    return NEVER if release in scenario.never else SAME


def _kind(scenario: Scenario) -> str:
    link = f" ([report]({scenario.source}))" if scenario.source else ""
    what = f"; stands in: {scenario.stand_in}" if scenario.stand_in else ""
    return f"{scenario.kind}{link}{what}"


def _told(scenario: Scenario) -> str:
    told = scenario.told
    alerts = ", ".join(told.alerts) or "no alert"
    if not told.cause:
        labels = ", ".join(f'{name}="{value}"' for name, value in told.labels.items())
        return f"`{told.series}{{{labels}}}`; {alerts}"
    code = f", code `{told.code}`" if told.code else ""
    return f"{told.stage}, `{told.cause}`{code}; {alerts}"


TABLES: dict[str, Callable[[], str]] = {
    "kinds-real": partial(kinds, "real"),
    "kinds-stand-in": partial(kinds, "stand-in"),
    "why-not": why_not,
}
