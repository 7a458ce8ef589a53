"""What the options of a site change in the rule file."""

from __future__ import annotations

import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from hicache_obs.rules import JOB, RUNBOOKS, alerts
from hicache_obs.rules.render import DASHBOARDS, rules
from hicache_obs.rules.thresholds import Thresholds

JOBS = ["kv", 'say "kv"', "back\\slash", "it's: {kv} #1", "größe", "a\nb"]


def rendered(**options: Any) -> dict[str, dict[str, Any]]:
    """The alerts of the file, by name."""
    groups = yaml.safe_load(rules(**options))["groups"]
    return {rule["alert"]: rule for rule in groups[1]["rules"]}


def promtool_takes(promtool: str, path: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def changed(**options: Any) -> set[str]:
    """The alerts that the options change."""
    plain, other = rendered(), rendered(**options)
    assert list(plain) == list(other)
    return {name for name in plain if plain[name] != other[name]}


@pytest.mark.parametrize("job", JOBS)
def test_any_job_name_is_matched_as_it_is(promtool: str, tmp_path: Path, job: str) -> None:
    assert changed(job=job) == {"HiCacheObsExporterAbsent"}
    (tmp_path / "hicache-obs.rules.yml").write_text(rules(job=job))
    promtool_takes(promtool, tmp_path / "hicache-obs.rules.yml")
    # A target of that job that is up silences the alert, so the name in the rule is the job's.
    named = job.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    silent = {"eval_time": "9m", "alertname": "HiCacheObsExporterAbsent", "exp_alerts": []}
    tests = {
        "rule_files": ["hicache-obs.rules.yml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": f'up{{job="{named}"}}', "values": "1x9"}],
                "alert_rule_test": [silent],
            }
        ],
    }
    path = tmp_path / "job.test.yml"
    path.write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_labels_are_added_to_every_alert_and_to_no_recording() -> None:
    labels = {"team": "kv", "note": 'a "b": c'}
    plain = rendered()
    for name, rule in rendered(labels=labels).items():
        assert rule["labels"] == plain[name]["labels"] | labels
    recordings = yaml.safe_load(rules(labels=labels))["groups"][0]
    assert recordings == yaml.safe_load(rules())["groups"][0]


@pytest.mark.parametrize("end", ["", "/"])
def test_addresses_of_runbooks_and_dashboards_reach_every_alert(end: str) -> None:
    found = rendered(
        runbooks=f"https://wiki.example/kv{end}", dashboards=f"https://grafana.example/g{end}"
    )
    shipped = rendered()
    for name, rule in found.items():
        plain, texts = shipped[name]["annotations"], rule["annotations"]
        assert texts["runbook_url"] == plain["runbook_url"].replace(
            RUNBOOKS, "https://wiki.example/kv"
        )
        assert texts["dashboard_url"] == plain["dashboard_url"].replace(
            DASHBOARDS, "https://grafana.example/g"
        )
        assert texts["runbook_url"].startswith(f"https://wiki.example/kv/{name}.md")
        assert texts["dashboard_url"].startswith("https://grafana.example/g/d/hicache-")


@pytest.mark.parametrize(
    ("change", "name", "where", "text"),
    [
        ("scrape_gap=90s", "HiCacheRegistrationFailed", "keep_firing_for", "90s"),
        ("unreachable_for=2m", "HiCacheMooncakeUnreachable", "for", "2m"),
        ("not_registered_for=1h", "HiCachePoolNotRegistered", "for", "1h"),
        ("degraded_for=7m", "HiCacheTransportDowngraded", "for", "7m"),
        ("call_hangs_after=10m", "HiCacheCallHanging", "expr", "> 600"),
        ("crash_loop_starts=5", "HiCacheCrashLoop", "expr", ">= 5"),
        ("crash_loop_window=1h", "HiCacheCrashLoop", "expr", "[1h]"),
        ("errors_window=30m", "HiCacheObsErrors", "expr", "offset 30m"),
        ("skew_for=2h", "HiCacheObsVersionSkew", "for", "2h"),
        ("exporter_absent_for=3m", "HiCacheObsExporterAbsent", "for", "3m"),
        ("unseen_for=1d", "HiCacheObsWorkerUnseen", "for", "1d"),
        ("host_memory_ratio=0.9", "HiCacheHostMemoryOvercommitted", "expr", "> 0.9"),
    ],
)
def test_each_threshold_reaches_its_alert(change: str, name: str, where: str, text: str) -> None:
    limits = Thresholds().with_changes([change])
    assert text in rendered(limits=limits)[name][where]
    assert text not in rendered()[name][where]


def test_promtool_takes_the_rules_with_every_threshold_changed(
    promtool: str, tmp_path: Path
) -> None:
    for end in (0, 1):
        limits = Thresholds(**{one.name: one.metadata["range"][end] for one in fields(Thresholds)})
        (tmp_path / "rules.yml").write_text(rules(limits))
        promtool_takes(promtool, tmp_path / "rules.yml")


def test_the_table_above_has_every_threshold() -> None:
    (mark,) = test_each_threshold_reaches_its_alert.pytestmark  # type: ignore[attr-defined]
    assert {row[0].partition("=")[0] for row in mark.args[1]} == set(vars(Thresholds()))


def test_a_wait_of_nothing_is_left_out() -> None:
    limits = Thresholds(scrape_gap=0, unreachable_for=0, degraded_for=0, skew_for=0)
    found = rendered(limits=limits)
    assert not any("keep_firing_for" in rule for rule in found.values())
    assert "for" not in found["HiCacheMooncakeUnreachable"]


def test_texts_name_the_thresholds_that_were_set() -> None:
    limits = Thresholds(unreachable_for=120, crash_loop_window=3600, errors_window=1800)
    texts = {alert.name: alert.summary + alert.description for alert in alerts(limits)}
    assert "for 2m or longer" in texts["HiCacheMooncakeUnreachable"]
    assert "within 1h" in texts["HiCacheCrashLoop"]
    assert "within 30m" in texts["HiCacheObsErrors"]


def test_those_that_page_come_first_and_the_default_job_is_ours() -> None:
    severities = [rule["labels"]["severity"] for rule in rendered().values()]
    assert severities == sorted(severities)
    assert changed(job=JOB) == set()
