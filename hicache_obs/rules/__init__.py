"""The Prometheus rules that hicache-obs ships, as data: alerts, recording rules, thresholds.

``deploy/prometheus/hicache-obs.rules.yml`` is what `render.rules` makes of them with the defaults.
"""

from __future__ import annotations

from hicache_obs.rules.alert import Alert
from hicache_obs.rules.capacity import capacity
from hicache_obs.rules.failures import failures
from hicache_obs.rules.own_health import own_health
from hicache_obs.rules.states import states
from hicache_obs.rules.thresholds import Thresholds

JOB = "hicache-obs"
"""Name of the exporter's scrape job, where nothing else is said."""
RUNBOOKS = "https://github.com/hicache-obs/hicache-obs/blob/main/docs/runbooks"
"""Where the runbooks are read, unless a site keeps a copy of its own."""


def alerts(limits: Thresholds | None = None, job: str = JOB) -> tuple[Alert, ...]:
    """Every alert; those that page first."""
    limits = limits or Thresholds()
    found = (*failures(limits), *states(limits), *capacity(limits), *own_health(limits, job))
    return tuple(sorted(found, key=lambda alert: alert.severity))
