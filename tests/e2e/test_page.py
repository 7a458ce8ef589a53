"""One page for the failure that started the project, from the native call to the webhook.

Real Mooncake, SGLang 0.5.14, exporter, Prometheus and Alertmanager; only the pager is ours.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.demonstration import FAILING_PORT, Demonstration, demonstration
from bench.monitoring import PACKAGES

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
        "impact": "Yes, by the servers named in `affected`: they do not start. Servers of the "
        "model that were up before go on serving.",
        "action": CAUSE.action,
    }


def test_both_scrape_sources_at_once_fire_the_same_alerts(night: Demonstration) -> None:
    labels = [sorted(map(str, one.alerts())) for one in (night.shipped, night.both)]
    names = [
        {alert["labels"]["alertname"] for alert in one.alerts()}
        for one in (night.shipped, night.both)
    ]
    assert names[0] == names[1] == {"HiCacheRegistrationFailed", "HiCacheAllocatorMismatch"}
    assert len(labels[0]) == len(labels[1]) == 2
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
