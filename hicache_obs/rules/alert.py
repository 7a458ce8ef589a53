"""What an alert is."""

from __future__ import annotations

from dataclasses import dataclass

CRITICAL, WARNING = "critical", "warning"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert. *wait* (``for``) and *keep* (``keep_firing_for``) in seconds.

    *traffic*, *first* and *worked* are the first three lines of its runbook: is traffic affected
    now, the safe first action, how to know that it worked. *causes* are those that it can carry
    in the label ``cause``, each with a section of the runbook. *dashboard* is the uid of the one
    that it links to.
    """

    name: str
    severity: str
    expr: str
    summary: str
    description: str
    affected: str
    traffic: str
    first: str
    worked: str
    dashboard: str
    wait: int = 0
    keep: int = 0
    causes: tuple[str, ...] = ()
