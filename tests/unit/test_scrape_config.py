"""The shipped scrape configuration: Prometheus takes it, and it keeps one source for each row."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from hicache_obs import metrics as m
from hicache_obs.rules import JOB

SCRAPE = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "scrape.yml"


def jobs() -> dict[str, dict[str, Any]]:
    return {job["job_name"]: job for job in yaml.safe_load(SCRAPE.read_text())["scrape_configs"]}


def test_promtool_takes_it(promtool: str) -> None:
    command = [promtool, "check", "config", str(SCRAPE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_exporters_rows_keep_the_workers_labels_under_the_rules_job() -> None:
    assert jobs()[JOB]["honor_labels"] is True


def test_sglangs_copy_of_every_row_is_dropped_and_nothing_else() -> None:
    (rule,) = jobs()["sglang"]["metric_relabel_configs"]
    assert (rule["action"], rule["source_labels"]) == ("drop", ["__name__"])
    dropped = re.compile(rule["regex"])
    assert all(dropped.fullmatch(metric.name) for metric in m.METRICS)
    assert not dropped.fullmatch("sglang:hicache_host_total_tokens")
