"""What a macro makes, where a panel's rows cannot show it."""

from __future__ import annotations

import re

from components.promql import STAGES, expand

from hicache_obs.causes import CAUSES
from hicache_obs.rules.of_failure import _OF_STAGE, alert_of, by_name


def test_failures_name_their_alert() -> None:
    """As PromQL does it: the last of the label_replace whose pattern fits."""
    found = expand("ALERTED(hicache_failure_active)", ())
    rules = re.findall(r', "alert", "(\w+)", "(\w+)", "([^"]+)"\)', found)
    for stage in STAGES:
        for cause in (*CAUSES, "something new"):
            labels = {"stage": stage, "cause": cause}
            fits = [alert for alert, label, one in rules if re.fullmatch(one, labels[label])]
            assert fits[-1] == alert_of(stage, cause)
            assert fits[-1] in by_name()
    assert set(STAGES) == set(_OF_STAGE)
