"""What a dashboard asks of Prometheus: its panels and queries, as Grafana would send them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_VARIABLE = re.compile(r"\$\{?(__)?([a-z_]+)\}?")


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel that is no row, in order."""
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def substituted(
    expression: str, variables: Mapping[str, str] | None = None, interval: str = "30s"
) -> str:
    """*expression* with Grafana's variables put in: ``.*`` (All) unless *variables* say another,
    and *interval* for the lengths of time that Grafana works out."""

    def value(match: re.Match[str]) -> str:
        return interval if match[1] else (variables or {}).get(match[2], ".*")

    return _VARIABLE.sub(value, expression)
