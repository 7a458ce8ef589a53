"""Whether the promtool tests notice every small fault of a rule."""

from __future__ import annotations

import copy
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from rules.mutants import Mutant, Rule, mutants

from hicache_obs.rules.render import rules

TESTS = Path(__file__).resolve().parents[3] / "deploy" / "prometheus" / "tests"
RECORDINGS, ALERTS = (group["rules"] for group in yaml.safe_load(rules())["groups"])
THREADS = 2
LONG = 100  # minutes
FIRST = 2  # tests

EQUIVALENT: dict[str, dict[str, str]] = {}
"""Mutants that no test can tell from the rule, by the name of the rule, each with the reason."""


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_every_fault_of_an_alert_is_noticed(tmp_path: Path, promtool: str, rule: Rule) -> None:
    needed = [one for one in RECORDINGS if one["record"] in rule["expr"]]
    trial = Trial(tmp_path, promtool, rule["alert"], needed)
    assert trial.survivors(rule) == list(EQUIVALENT.get(rule["alert"], {}))


@pytest.mark.parametrize("rule", RECORDINGS, ids=lambda rule: str(rule["record"]))
def test_every_fault_of_a_recording_is_noticed(tmp_path: Path, promtool: str, rule: Rule) -> None:
    others = [one for one in RECORDINGS if one is not rule]
    trial = Trial(tmp_path, promtool, "Recording", others)
    assert trial.survivors(rule) == list(EQUIVALENT.get(rule["record"], {}))


class Trial:
    """The tests in the file *name*, to be run on mutants of a rule that stands beside *others*.

    Most mutants fail already on a sketch of the tests, which is fast to run: without texts, the
    first tests, then those that are neither large nor long. What survives that must pass all.
    """

    def __init__(self, folder: Path, promtool: str, name: str, others: list[Rule]) -> None:
        self.folder, self.promtool, self.others = folder, promtool, others
        self.whole = yaml.safe_load((TESTS / f"{name}.test.yml").read_text())
        light = _sketch(self.whole)
        self.sketches = (
            self.whole | {"tests": light[:FIRST]},
            self.whole | {"tests": light[FIRST:]},
        )
        self.number = count()

    def survivors(self, rule: Rule) -> list[str]:
        """What was changed in the mutants of *rule* that no test notices."""
        assert self._passes(self.whole, rule), "the tests do not pass on the rule itself"
        found = list(mutants(rule))
        with ThreadPoolExecutor(THREADS) as pool:
            alive = list(pool.map(self._survives, found))
        return [mutant.what for mutant, lives in zip(found, alive, strict=True) if lives]

    def _survives(self, mutant: Mutant) -> bool:
        silent = {key: mutant.rule[key] for key in mutant.rule if key != "annotations"}
        light = all(self._passes(sketch, silent) for sketch in self.sketches)
        return light and self._passes(self.whole, mutant.rule)

    def _passes(self, tests: dict[str, Any], rule: Rule) -> bool:
        folder = self.folder / str(next(self.number)) / "tests"
        folder.mkdir(parents=True)
        (folder / "fleet.yml").symlink_to(TESTS / "fleet.yml")
        groups = [
            {"name": "hicache-obs.recording", "rules": [*self.others]},
            {"name": "hicache-obs.alerts", "rules": []},
        ]
        groups["alert" in rule]["rules"].append(rule)
        (folder.parent / "hicache-obs.rules.yml").write_text(yaml.safe_dump({"groups": groups}))
        (folder / "rule.test.yml").write_text(yaml.safe_dump(tests))
        done = subprocess.run(
            [self.promtool, "test", "rules", str(folder / "rule.test.yml")],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode == 0


def _sketch(tests: dict[str, Any]) -> list[dict[str, Any]]:
    light = [copy.deepcopy(one) for one in tests["tests"] if not _is_heavy(one)]
    for one in light:
        for check in one.get("alert_rule_test", ()):
            for alert in check["exp_alerts"]:
                alert.pop("exp_annotations", None)
    return light


def _is_heavy(test: dict[str, Any]) -> bool:
    minutes = [int(check["eval_time"][:-1]) for check in test.get("alert_rule_test", ())]
    return test["name"].startswith("fleet") or max(minutes, default=0) > LONG
