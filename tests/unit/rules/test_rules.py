"""The shipped rules: valid for Prometheus 2.42 and 3.x, complete, and each tested by promtool."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from hicache_obs.causes import CAUSES
from hicache_obs.rules import alerts
from hicache_obs.rules.alert import CRITICAL, WARNING
from hicache_obs.rules.of_failure import by_name
from hicache_obs.rules.render import rules

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "prometheus"
SHIPPED = DEPLOY / "hicache-obs.rules.yml"
FILES = sorted((DEPLOY / "tests").glob("*.test.yml"))
RECORDINGS, ALERTS = (group["rules"] for group in yaml.safe_load(rules())["groups"])
ANNOTATIONS = [
    *("summary", "description", "affected", "impact", "action", "runbook_url", "dashboard_url"),
]
SCENARIOS = [
    *("fires", "silent", "worker died", "scrape gap", "rolling update", "both scrape sources"),
    *("fleet", "resolves"),
]
"""What the tests of every alert begin their names with."""
IN_2_42_AND_3 = {
    *("count", "group", "max", "min", "sum", "topk"),
    *("absent", "increase", "last_over_time", "max_over_time", "min_over_time", "time", "vector"),
    *("label_join", "label_replace"),
}
"""Functions and aggregations that both have with the same meaning. Where 3.x differs is the edge
of a range (left-open there): no rule and no test depends on a sample at the edge."""
KEYWORDS = {
    *("and", "by", "group_left", "group_right", "ignoring", "on", "or", "unless", "offset"),
    "without",
}


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    parts = [str(part) for part in command]
    return subprocess.run(parts, capture_output=True, text=True, check=False)


def test_the_shipped_file_is_what_the_package_makes() -> None:
    assert SHIPPED.read_text() == rules()


def test_promtool_finds_nothing_wrong(promtool: str) -> None:
    done = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", SHIPPED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".test.yml"))
def test_promtool_tests(promtool: str, path: Path) -> None:
    done = run(promtool, "test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_each_alert_is_seen_firing_word_for_word_and_silent(rule: dict[str, Any]) -> None:
    found = [
        check["exp_alerts"]
        for one in named(rule["alert"])
        for check in one["alert_rule_test"]
        if check["alertname"] == rule["alert"]
    ]
    assert [] in found
    fired = [alert for expected in found for alert in expected]
    assert fired
    for alert in fired:
        assert sorted(alert["exp_annotations"]) == sorted(ANNOTATIONS)
    causes = {alert["exp_labels"].get("cause") for alert in fired}
    assert causes >= set(by_name()[rule["alert"]].causes)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_each_alert_is_tried_in_every_scenario(rule: dict[str, Any]) -> None:
    names = [one["name"] for one in named(rule["alert"])]
    assert len(names) == len(set(names))
    for scenario in SCENARIOS:
        assert any(name.startswith(scenario) for name in names), scenario


def named(name: str) -> list[dict[str, Any]]:
    """The tests of the alert *name*."""
    found: list[dict[str, Any]] = yaml.safe_load(
        (DEPLOY / "tests" / f"{name}.test.yml").read_text()
    )["tests"]
    return found


def test_each_alert_has_its_file_and_each_file_its_alert() -> None:
    names = {path.name.removesuffix(".test.yml") for path in FILES}
    assert names == {rule["alert"] for rule in ALERTS} | {"Recording"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_all_that_a_page_needs(rule: dict[str, Any]) -> None:
    assert rule["alert"].startswith("HiCache")
    assert rule["labels"]["severity"] in (CRITICAL, WARNING)
    assert list(rule["annotations"]) == ANNOTATIONS
    assert all(rule["annotations"].values())


def test_every_cause_belongs_to_an_alert() -> None:
    told = {cause for alert in alerts() for cause in alert.causes}
    assert told == set(CAUSES) - {"peer"}


def test_recordings_are_named_by_level_metric_and_operation() -> None:
    names = [rule["record"] for rule in RECORDINGS]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]+:hicache_[a-z_]+:(sum|max)", name) for name in names)


def queries(rule: dict[str, Any]) -> list[str]:
    """The rule's expression, and those that its annotations ask for."""
    texts = rule.get("annotations", {}).values()
    asked = [query for text in texts for query in re.findall(r"printf `([^`]+)`", text)]
    return [rule["expr"], *(re.sub(r"%\[\d+\]q", '"x"', query) for query in asked)]


@pytest.mark.parametrize(
    "rule", [*RECORDINGS, *ALERTS], ids=lambda rule: rule.get("alert") or rule["record"]
)
def test_every_query_is_in_the_grammar_of_2_42_and_3(
    rule: dict[str, Any], promtool: str, tmp_path: Path
) -> None:
    """promtool is that of 2.42; promql_parser has the grammar of 3.x."""
    found = queries(rule)
    path = tmp_path / "queries.yml"
    made = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(found)]
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": made}]}))
    done = run(promtool, "check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr
    for query in found:
        promql_parser.parse(query)
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', query)
        called = set(re.findall(r"([a-z_0-9]+) *\(", bare)) - KEYWORDS
        assert called <= IN_2_42_AND_3
        assert "@" not in bare
        assert '{""' not in bare  # quoted metric names are of 3.x


def test_a_query_of_3_only_is_seen() -> None:
    """The parser of the test above does have the newer grammar."""
    promql_parser.parse("double_exponential_smoothing(up[5m], 0.5, 0.5)")
    with pytest.raises(ValueError, match="holt_winters"):
        promql_parser.parse("holt_winters(up[5m], 0.5, 0.5)")
