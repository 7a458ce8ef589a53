"""One page for the failure that started the project, from the native call to the webhook.

Real Mooncake, SGLang 0.5.14, exporter, Prometheus and Alertmanager; only the pager is ours.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench.demonstration import FAILING_PORT, Demonstration, demonstration
from bench.monitoring import PACKAGES, Prometheus
from queries import panels, substituted

from hicache_obs.causes import CAUSES
from hicache_obs.rules.render import rules
from hicache_obs.rules.thresholds import Thresholds

ROOT = Path(__file__).resolve().parents[2]
CAUSE = CAUSES["foreign_buffer"]


@pytest.fixture(scope="module")
def night(
    tmp_path_factory: pytest.TempPathFactory, program: Callable[[str, str], str]
) -> Iterator[Demonstration]:
    """The demonstration, its failure paged and not mended; `test_the_page_resolves` mends it."""
    for name, package in PACKAGES.items():
        program(name, package)
    # As shipped, but for the time that a failure outlives a scrape gap: it is waited for here.
    text = rules(Thresholds(scrape_gap=2))
    folder = tmp_path_factory.mktemp("night")
    with demonstration(folder, ROOT / "deploy", text) as found:
        yield found


def test_one_page_arrives_with_the_right_text(night: Demonstration) -> None:
    (alert,) = night.page.alerts
    assert alert["labels"] == {
        "alertname": "HiCacheRegistrationFailed",
        "severity": "critical",
        "model_name": "bench-model",
        "stage": "registration",
        "mode": "standalone",
        "role": "draft",
        "pool": "draft",
        "allocator": "default",
        "code": "-1",
        "cause": "foreign_buffer",
    }
    told = dict(alert["annotations"])
    assert told.pop("runbook_url").endswith("/HiCacheRegistrationFailed.md#foreign_buffer")
    assert told.pop("dashboard_url").endswith(
        "/d/hicache-server?orgId=1&var-model_name=bench-model"
    )
    assert told == {
        "summary": "bench-model: registration of the draft host pool with Mooncake failed "
        "(foreign_buffer)",
        "description": "Mooncake (standalone) answered code -1 for pool draft (role draft, "
        f"allocator default, 1.062MiB): {CAUSE.meaning}.",
        "affected": f"1 rank(s) of 1 server(s): {socket.gethostname()}:{FAILING_PORT} tp0",
        "impact": "Yes, by those servers named in `affected` that are starting: they do not come "
        "up. A server that is up goes on serving, without L3 if it is named.",
        "action": CAUSE.action,
    }


PANELS = [
    pytest.param(panel, id=f"{path.stem}: {panel['title']}")
    for path in sorted((ROOT / "dashboards" / "json").glob("*.json"))
    for panel in panels(json.loads(path.read_text()))
]
EMPTY = yaml.safe_load((ROOT / "dashboards" / "empty_in_demo.yaml").read_text())


def rows(prometheus: Prometheus, panel: dict[str, Any]) -> list[dict[str, Any]]:
    """What the panel shows with all variables on All, as Grafana would ask for it."""
    return [
        row
        for target in panel["targets"]
        for row in prometheus.query(substituted(target["expr"], interval="5s"))
    ]


@pytest.mark.parametrize("panel", PANELS)
def test_each_panel_has_data_of_the_demonstration(
    night: Demonstration, panel: dict[str, Any]
) -> None:
    """The same rows from one and from both scrape sources, each rank once."""
    shipped, both = rows(night.shipped, panel), rows(night.both, panel)
    assert bool(shipped) == (panel["title"] not in EMPTY)
    labels = [sorted(str(sorted(row["metric"].items())) for row in one) for one in (shipped, both)]
    assert labels[0] == labels[1]
    if panel["title"] in SAME_VALUE:
        assert [row["value"][1] for row in shipped] == [row["value"][1] for row in both]


SAME_VALUE = {
    "Failing ranks", "Live ranks", "Host pool bytes", "Registered bytes", "Failures",
    "Host pool bytes by role", "Allocator mix", "Token slots",
}  # fmt: skip
"""Panels that sum: with both sources on, nothing is counted twice."""


def test_both_scrape_sources_at_once_fire_the_same_alerts(night: Demonstration) -> None:
    for prometheus in (night.shipped, night.both):
        names = sorted(alert["labels"]["alertname"] for alert in prometheus.alerts())
        assert names == ["HiCacheAllocatorMismatch", "HiCacheRegistrationFailed"]
    assert night.both.query('hicache_worker_up{host="", job="sglang"} == 1')
    assert not night.shipped.query('hicache_worker_up{host=""}')


def test_the_page_resolves_when_the_fixed_server_stands(night: Demonstration) -> None:
    server = night.mend()
    night.webhook.wait_for(lambda one: one.body["status"] == "resolved", 20)
    assert [page.body["status"] for page in night.pages] == ["firing", "resolved"]
    assert night.shipped.alerts() == []
    assert server.terminate() == 0


def test_nothing_else_was_sent(night: Demonstration) -> None:
    assert night.pages == night.webhook.notices
