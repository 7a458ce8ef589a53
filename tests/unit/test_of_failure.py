"""Which alert a failure fires: what the rules' own selectors say."""

from __future__ import annotations

import itertools
import re

import pytest

from hicache_obs.causes import CAUSES
from hicache_obs.rules import RUNBOOKS
from hicache_obs.rules.failures import failures
from hicache_obs.rules.of_failure import alert_of, alerts_of, runbook
from hicache_obs.rules.thresholds import Thresholds

STAGES = ("allocation", "pinning", "setup", "registration", "attach", "")


def test_every_cause_but_a_peers_has_an_alert() -> None:
    assert [name for name in CAUSES if not alerts_of(name)] == ["peer"]


def test_a_runbooks_address_is_that_of_the_rules() -> None:
    assert runbook("HiCacheCrashLoop") == f"{RUNBOOKS}/HiCacheCrashLoop.md"
    assert runbook("A", 'x"#<') == f"{RUNBOOKS}/A.md#x%22%23%3C"
    assert runbook("", "budget") == ""


@pytest.mark.parametrize(
    ("stage", "cause"), [*itertools.product(STAGES, [*CAUSES, "", "of_tomorrow"])]
)
def test_the_alert_of_a_failure_is_one_that_it_fires(stage: str, cause: str) -> None:
    fired = [a for a in failures(Thresholds()) if _selects(a.expr, stage=stage, cause=cause)]
    named = alert_of(stage, cause)
    assert (named in [alert.name for alert in fired]) if fired else named == ""
    own = [alert.name for alert in fired if cause in alert.causes]
    assert own in ([], [named])


def _selects(expr: str, **labels: str) -> bool:
    """Whether the selector of ``hicache_failure_active`` in *expr* takes a row with *labels*."""
    inside = re.search(r"hicache_failure_active\{(.*?)\}", expr)
    assert inside is not None
    matchers = re.findall(r'(\w+)(=~|!~|=|!=)"(.*?)"', inside[1])
    assert matchers
    return all(
        bool(re.fullmatch(value, labels[name])) == (sign in ("=", "=~"))
        for name, sign, value in matchers
    )
