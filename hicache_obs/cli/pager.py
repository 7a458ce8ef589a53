"""The demonstration's page: the shipped rules and routes, a real Prometheus and Alertmanager."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from hicache_obs.rules import JOB
from hicache_obs.rules.render import rules
from hicache_obs.rules.thresholds import Thresholds
from hicache_obs.share import share

_PAGE_S = 20


class StepFailedError(Exception):
    """A step of the demonstration did not do what it says."""


def bench(module: str) -> Any:
    """A module of the bench, which travels with the package."""
    folder = str(share("bench"))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def require(holds: bool, text: str) -> None:
    if not holds:
        raise StepFailedError(text)


@contextmanager
def paged(programs: Any, exporter: Any, folder: Path) -> Iterator[Pager]:
    """The shipped rules and routes in a real Prometheus and Alertmanager, where there are any."""
    lacking = programs.missing()
    if lacking:
        yield Pager(None, f"No page is shown: not installed (Debian): {', '.join(lacking)}")
        return
    deploy = share("deploy")
    config = yaml.safe_load((deploy / "alertmanager" / "demo.yml").read_text(encoding="utf-8"))
    targets = {JOB: [exporter.address]}
    scrape = programs.scrape_configs(deploy / "prometheus" / "scrape.yml", targets, both=False)
    # The rules as shipped, but for the time that a failure outlives a scrape gap.
    text = rules(Thresholds(scrape_gap=2))
    with (
        programs.Webhook() as webhook,
        programs.Alertmanager(folder, config, webhook) as alertmanager,
        programs.Prometheus(folder, scrape, rules=text, alertmanager=alertmanager) as prometheus,
    ):
        told = (
            f"Prometheus {prometheus.url}/alerts and Alertmanager {alertmanager.url} have the "
            "shipped rules and routes."
        )
        yield Pager(webhook, told)


class Pager:
    """What the webhook of the critical route was sent; nothing where there is none."""

    def __init__(self, webhook: Any, told: str) -> None:
        self._webhook = webhook
        self.told = told

    def require_page(self, show: Console) -> None:
        if self._webhook is None:
            return
        page = self._wait("firing")
        require(len(page.alerts) == 1, f"the page holds {len(page.alerts)} alerts, not 1")
        alert = page.alerts[0]
        name = alert["labels"]["alertname"]
        require(name == "HiCacheRegistrationFailed", f"the page is {name}")
        show.print("   The page that arrived at the webhook:")
        for part in ("summary", "description", "affected", "impact", "action", "runbook_url"):
            show.print(f"   {part:12} {alert['annotations'][part]}", style="cyan", markup=False)

    def require_resolved(self, show: Console) -> None:
        if self._webhook is None:
            return
        self._wait("resolved")
        pages = [one for one in self._webhook.notices if one.path == "/pager"]
        statuses = [one.body["status"] for one in pages]
        require(statuses == ["firing", "resolved"], f"the pager was told {statuses}")
        show.print("   The page resolved: one page came, and one all-clear.")

    def _wait(self, status: str) -> Any:
        try:
            return self._webhook.wait_for(
                lambda one: one.path == "/pager" and one.body["status"] == status, _PAGE_S
            )
        except TimeoutError as error:
            raise StepFailedError(f"{status}: {error}") from None
