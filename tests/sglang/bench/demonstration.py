"""The demonstration, under the eyes of the shipped rules: a server that dies at its start beside
one that stands, and the page of it.

Two Prometheus servers look at them: one with the shipped scrape configuration, and one that also
keeps what SGLang's own /metrics repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING or __package__:
    from .harness import Mooncake, Server, free_port, start_server
    from .monitoring import Alertmanager, Exporter, Notice, Prometheus, Webhook, scrape_configs
else:
    from harness import Mooncake, Server, free_port, start_server
    from monitoring import Alertmanager, Exporter, Notice, Prometheus, Webhook, scrape_configs

RELEASE = "0.5.14"
START_S = 150
FAILING_PORT, STANDING_PORT = 31_998, 31_999
_SEEN_S = 8
"""Scrapes of this many seconds are enough for a rate at an interval of one."""


@dataclass
class Demonstration:
    """What stands while the demonstration lasts."""

    shipped: Prometheus
    both: Prometheus
    webhook: Webhook
    page: Notice
    mend: Callable[[], Server]
    """Start the failing server again, with the fix; returns once it is ready."""

    @property
    def pages(self) -> list[Notice]:
        """What the pager was sent."""
        return [notice for notice in self.webhook.notices if notice.path == "/pager"]


@contextmanager
def demonstration(folder: Path, deploy: Path, rules: str) -> Iterator[Demonstration]:
    """Yields once the page of the dead server came and the other one was scraped for a while.

    Args:
        deploy: the folder of that name.
        rules: the rule file's text.
    """
    state = folder / "state"
    scraped = {"standing": free_port(), "mended": free_port()}
    with ExitStack() as stack:
        enter = stack.enter_context
        mooncake = enter(Mooncake(folder / "mooncake"))
        exporter = enter(Exporter(folder, state))
        webhook = enter(Webhook())
        config = yaml.safe_load((deploy / "alertmanager" / "demo.yml").read_text())
        alertmanager = enter(Alertmanager(folder, config, webhook))
        targets = {
            "hicache-obs": [exporter.address],
            "sglang": [f"127.0.0.1:{port}" for port in scraped.values()],
        }

        def prometheus(name: str, to: Alertmanager | None, *, both: bool) -> Prometheus:
            scrape = scrape_configs(deploy / "prometheus" / "scrape.yml", targets, both=both)
            return enter(Prometheus(folder / name, scrape, rules=rules, alertmanager=to))

        def start(name: str, port: int, **more: Any) -> Server:
            multiproc = folder / name / "multiproc"
            multiproc.mkdir(parents=True)
            env = {"HICACHE_OBS_STATE_DIR": str(state), "PROMETHEUS_MULTIPROC_DIR": str(multiproc)}
            env |= more.pop("env", {})
            options = {"folder": folder / name, "draft": "mha", "server_port": port, **more}
            return enter(start_server(RELEASE, mooncake, env, **options))

        shipped = prometheus("shipped", alertmanager, both=False)
        both = prometheus("both", None, both=True)
        standing = start("standing", STANDING_PORT, metrics_port=scraped["standing"])
        unfixed = start("unfixed", FAILING_PORT, env={"HICACHE_OBS_DRAFT_FIX": "off"})
        code = unfixed.wait(START_S)
        if code >= 0:
            raise RuntimeError(f"the unfixed server ended with {code}, not by death")
        page = webhook.wait_for(lambda one: one.body["status"] == "firing", 20)
        standing.wait_ready(START_S)
        time.sleep(_SEEN_S)

        def mend() -> Server:
            server = start("mended", FAILING_PORT, metrics_port=scraped["mended"])
            server.wait_ready(START_S)
            return server

        yield Demonstration(shipped, both, webhook, page, mend)
