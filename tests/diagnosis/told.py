"""What an operator is told of a walk: the exporter's rows, and the alerts that they fire."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from scenario import Scenario, load_all
from walk import Walked, Walks

from hicache_obs.exporter.host import Host

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "hicache-obs.rules.yml"
FAILURE = "hicache_failure_active"
AT = "20m"
"""When the alerts are looked at; the rows stand from the fifth minute on."""


Rows = list[tuple[str, dict[str, str], float]]


def rows_of(walked: Walked) -> Rows:
    """What Prometheus would have: the worker's own series if it stood, else the exporter's."""
    if walked.scraped:
        families = text_string_to_metric_families(walked.scraped)
        samples = (sample for family in families for sample in family.samples)
        return [(s.name, s.labels, s.value) for s in samples if s.name.startswith("hicache_")]
    host = Host([walked.state], keep=False)
    until = time.monotonic() + 30
    host.refresh()
    while any(row.metric.name == "hicache_worker_up" and row.value for row in host.view.rows):
        assert time.monotonic() < until, "a rank lives on"
        time.sleep(0.1)
        host.refresh()
    return [(row.metric.name, row.labels, row.value) for row in host.view.rows]


def standing(rows: Rows, name: str, labels: dict[str, str] | None = None) -> list[dict[str, str]]:
    """The labels of a metric's rows that carry *labels* and are not 0."""
    wanted = (labels or {}).items()
    return [has for found, has, value in rows if found == name and value and wanted <= has.items()]


def alerts(rows: Rows, promtool: str, folder: Path) -> set[str]:
    """The alerts that fire on these rows, by the shipped rules and the real promtool.

    The exporter's target is up all the time.
    """
    exporter = {"job": "hicache-obs", "instance": "exporter:9748"}
    scraped = {"job": "sglang", "instance": "server:30000"}
    series: list[dict[str, str]] = [{"series": f"up{_text(exporter)}", "values": "1x40"}]
    for name, labels, value in rows:
        target = exporter if labels.get("host") else scraped
        values = f"_x4 {value:.17g}x40"
        series.append({"series": name + _text(labels | target), "values": values})
    tests = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {"expr": FIRING, "eval_time": AT, "exp_samples": [{"labels": "x", "value": 0}]}
                ],
            }
        ],
    }
    path = folder / "alerts.test.yml"
    path.write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=60
    )
    return _names(done.stdout + done.stderr)


FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'


def _names(printed: str) -> set[str]:
    """The names in promtool's words: it prints what it got, since what is expected is never so."""
    _, found, got = printed.partition("got:")
    assert found, printed
    names = {part.split('"')[0] for part in got.split('alertname=\\"')[1:]} or {
        part.split('"')[0] for part in got.split('alertname="')[1:]
    }
    return {name.rstrip("\\") for name in names}


def _text(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def walks_of(*ways: str, sample_only: bool = False) -> list[Any]:
    """Parameters of a test: the scenarios of *ways*, each on its releases.

    ``make test`` takes each on the release of its sample. With *sample_only* one release is
    taken, and ``make test`` takes none: what SGLang does alone is compared once a whole start.
    """
    return [
        pytest.param(
            scenario,
            release,
            marks=() if release == scenario.sample and not sample_only else pytest.mark.full,
            id=f"{scenario.name}-{release}",
        )
        for scenario in load_all()
        if scenario.way in ways
        for release in scenario.releases
        if release == (scenario.sample or scenario.releases[-1]) or not sample_only
    ]


def check(walks: Walks, scenario: Scenario, release: str, promtool: str, folder: Path) -> None:
    """What is told of a walk is what its file says: the failure, or the series; the alerts."""
    walked = walks.walk(scenario, release, observed=True)
    rows, told = rows_of(walked), scenario.told
    found = standing(rows, FAILURE)
    if told.cause:
        seen = [{name: each.get(name) for name in told.failure} for each in found]
        assert told.failure in seen, walked.log[-2000:]
    else:
        assert found == []
    if told.series:
        assert standing(rows, told.series, told.labels), standing(rows, told.series)
    assert alerts(rows, promtool, folder) == set(told.alerts)


def check_alone(walks: Walks, scenario: Scenario, release: str) -> None:
    """SGLang answers, raises and builds the same without the plug-in."""
    alone = walks.walk(scenario, release, observed=False)
    assert list(alone.state.glob("*.jsonl")) == []
    assert alone.did == walks.walk(scenario, release, observed=True).did
