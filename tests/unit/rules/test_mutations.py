"""Whether the promtool tests notice every small fault of a rule."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
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
LONG_MINUTES = 100

_NO_CALL = "A call that was entered in the first second of 1970."
_COUNTED = "A count of what is there is never below 1."
EQUIVALENT = {
    "HiCachePoolNotRegistered": {"4:88: 0 becomes 1": _NO_CALL},
    "HiCacheCallHanging": {"2:54: 0 becomes 1": _NO_CALL},
    "HiCacheObsVersionSkew": {"5:3: > becomes >=": _COUNTED, "5:5: 0 becomes -1": _COUNTED},
    "HiCacheObsWorkerUnseen": {"8:3: > becomes >=": _COUNTED, "8:5: 0 becomes -1": _COUNTED},
}
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


def test_the_mutants_of_a_rule() -> None:
    expr = 'max(\n  a{b=~"x|y", c!="1 or 2"} > 30 unless rate(d[10m]) == 0)'
    rule = {"alert": "A", "expr": expr, "for": "5m", "keep_firing_for": "1m"}
    found = {mutant.what: mutant.rule for mutant in mutants(rule)}
    assert list(found) == [
        "2:6: =~ becomes !~",
        '2:8: "x|y" becomes "y"',
        '2:8: "x|y" becomes "x"',
        "2:16: != becomes =",
        "2:28: > becomes <=",
        "2:28: > becomes >=",
        "2:30: 30 becomes 29",
        "2:30: 30 becomes 31",
        "2:33: unless becomes and",
        "2:33: unless becomes or",
        "2:47: 10m becomes 5m",
        "2:47: 10m becomes 20m",
        "2:53: == becomes !=",
        "2:56: 0 becomes -1",
        "2:56: 0 becomes 1",
        "for is removed",
        "for: 5m becomes 150s",
        "for: 5m becomes 10m",
        "keep_firing_for is removed",
        "keep_firing_for: 1m becomes 30s",
        "keep_firing_for: 1m becomes 2m",
    ]
    assert found["2:30: 30 becomes 31"] == rule | {"expr": expr.replace("> 30", "> 31")}
    assert found["for is removed"] == {key: rule[key] for key in rule if key != "for"}


class Trial:
    """The tests in the file *name*, to be run on mutants of a rule that stands beside *others*.

    Most mutants fail soon, so a part of the tests runs before the next, all without texts. What
    passes every part must pass the file as it is, too.
    """

    def __init__(self, folder: Path, promtool: str, name: str, others: list[Rule]) -> None:
        self.folder, self.promtool, self.others = folder, promtool, others
        whole = yaml.safe_load((TESTS / f"{name}.test.yml").read_text())
        # JSON is YAML, and written much faster.
        self.whole = json.dumps(whole)
        self.parts = [json.dumps(part) for part in _parts(whole)]
        self.number = count()

    def survivors(self, rule: Rule) -> list[str]:
        """What was changed in the mutants of *rule* that no test notices."""
        assert self._passes(self.whole, rule), "the tests do not pass on the rule itself"
        found = list(mutants(rule))
        self._check(found)
        with ThreadPoolExecutor(THREADS) as pool:
            alive = list(pool.map(self._survives, found))
        return [mutant.what for mutant, lives in zip(found, alive, strict=True) if lives]

    def _check(self, found: list[Mutant]) -> None:
        """A mutant that Prometheus does not even take would seem to be noticed."""
        rules = [
            {key: mutant.rule[key] for key in mutant.rule if key != "annotations"}
            | {"labels": {"number": str(number)}}
            for number, mutant in enumerate(found)
        ]
        path = self.folder / "mutants.rules.yml"
        path.write_text(json.dumps({"groups": [{"name": "mutants", "rules": rules}]}))
        done = _run(self.promtool, "check", "rules", "--lint=none", str(path))
        assert done.returncode == 0, done.stdout + done.stderr

    def _survives(self, mutant: Mutant) -> bool:
        silent = {key: mutant.rule[key] for key in mutant.rule if key != "annotations"}
        return all(self._passes(part, silent) for part in self.parts) and self._passes(
            self.whole, mutant.rule
        )

    def _passes(self, tests: str, rule: Rule) -> bool:
        folder = self.folder / str(next(self.number)) / "tests"
        folder.mkdir(parents=True)
        (folder / "fleet.yml").symlink_to(TESTS / "fleet.yml")
        groups: list[dict[str, Any]] = [
            {"name": "hicache-obs.recording", "rules": [*self.others]},
            {"name": "hicache-obs.alerts", "rules": []},
        ]
        groups["alert" in rule]["rules"].append(rule)
        (folder.parent / "hicache-obs.rules.yml").write_text(json.dumps({"groups": groups}))
        (folder / "rule.test.yml").write_text(tests)
        return _run(self.promtool, "test", "rules", str(folder / "rule.test.yml")).returncode == 0


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _parts(tests: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Tests that fire, others, those that take long; all without the fleet and its rules."""
    parts: dict[str, list[dict[str, Any]]] = {"fires": [], "others": [], "long": []}
    for one in copy.deepcopy(tests["tests"]):
        checks = one.get("alert_rule_test", ())
        for alert in (alert for check in checks for alert in check["exp_alerts"]):
            alert.pop("exp_annotations", None)
        minutes = max((int(check["eval_time"].removesuffix("m")) for check in checks), default=0)
        if not one["name"].startswith("fleet"):
            kind = "long" if minutes > LONG_MINUTES else "others"
            parts["fires" if one["name"].startswith("fires") else kind].append(one)
    for part in filter(None, parts.values()):
        yield tests | {"rule_files": tests["rule_files"][:1], "tests": part}
