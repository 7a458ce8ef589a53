"""Which alert a failure fires, and where its runbook is."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from hicache_obs.rules import RUNBOOKS, alerts
from hicache_obs.rules.alert import Alert
from hicache_obs.rules.failures import UNREACHABLE

_OF_STAGE = {
    "allocation": "HiCacheHostPoolAllocationFailed",
    "pinning": "HiCachePinningFailed",
    "setup": "HiCacheStoreSetupFailed",
    "registration": "HiCacheRegistrationFailed",
    "attach": "HiCacheRegistrationFailed",
}


def alert_of(stage: str, cause: str) -> str:
    """The name of the alert that ``hicache_failure_active`` of this *stage* and *cause* fires;
    "" where there is none."""
    return "HiCacheMooncakeUnreachable" if cause in UNREACHABLE else _OF_STAGE.get(stage, "")


@lru_cache(maxsize=1)
def by_name() -> dict[str, Alert]:
    """Every alert as shipped, by its name; those that page first."""
    return {alert.name: alert for alert in alerts()}


def alerts_of(cause: str) -> tuple[Alert, ...]:
    """The alerts that may carry *cause*."""
    return tuple(alert for alert in by_name().values() if cause in alert.causes)


def runbook(alert: str, cause: str = "") -> str:
    """The address of an alert's runbook, at the section of *cause* if there is one; "" for no
    alert."""
    if not alert:
        return ""
    return f"{RUNBOOKS}/{alert}.md" + (f"#{quote(cause, safe='')}" if cause else "")
