"""The rules as a Prometheus rule file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from hicache_obs import durations
from hicache_obs.rules import JOB, RUNBOOKS, alerts
from hicache_obs.rules.alert import Alert
from hicache_obs.rules.recording import recordings
from hicache_obs.rules.templates import first_action
from hicache_obs.rules.thresholds import Thresholds

DASHBOARDS = "http://localhost:3000"
"""Address of Grafana; every site has its own."""


def rules(
    limits: Thresholds | None = None,
    *,
    job: str = JOB,
    labels: Mapping[str, str] | None = None,
    runbooks: str = RUNBOOKS,
    dashboards: str = DASHBOARDS,
    operator: bool = False,
) -> str:
    """The rule file: YAML for Prometheus 2.42 and later.

    Args:
        job: the exporter's job name in Prometheus.
        labels: added to every alert.
        runbooks: address of the folder that holds the runbooks.
        dashboards: address of Grafana.
        operator: as a PrometheusRule of the Prometheus operator (0.66 and later).
    """
    limits = limits or Thresholds()
    runbooks, dashboards = runbooks.rstrip("/"), dashboards.rstrip("/")
    groups = [
        {
            "name": "hicache-obs.recording",
            "rules": [{"record": each.name, "expr": each.expr} for each in recordings()],
        },
        {
            "name": "hicache-obs.alerts",
            "rules": [
                _alert(each, dict(labels or {}), runbooks, dashboards)
                for each in alerts(limits, job)
            ],
        },
    ]
    made: dict[str, Any] = {"groups": groups}
    if operator:
        name = {"name": "hicache-obs", "labels": {"app.kubernetes.io/name": "hicache-obs"}}
        kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
        made = {**kind, "metadata": name, "spec": made}
    head = _head(limits, job, labels or {}, runbooks, dashboards, operator=operator)
    return head + yaml.dump(
        made, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True
    )


def _head(
    limits: Thresholds,
    job: str,
    labels: Mapping[str, str],
    runbooks: str,
    dashboards: str,
    *,
    operator: bool,
) -> str:
    """The command that makes the file, so that it can be made again after an update."""
    options = (
        ("job", job, JOB),
        ("runbook-base", runbooks, RUNBOOKS),
        ("dashboard-base", dashboards, DASHBOARDS),
    )
    given = [(name, value) for name, value, default in options if value != default]
    given += [("label", f"{name}={value}") for name, value in labels.items()]
    given += [("threshold", change) for change in limits.changes()]
    lines = [
        "Prometheus rules of hicache-obs, not edited by hand (see docs/alerts.md). Made by",
        " \\\n#     ".join(
            ["  hicache-obs export-rules DIRECTORY" + " --operator" * operator]
            + [f"--{name} {_in_a_line(shlex.quote(value))}" for name, value in given]
        ),
    ]
    return "".join(f"# {line}\n" for line in lines)


def _in_a_line(text: str) -> str:
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _alert(alert: Alert, labels: dict[str, str], runbooks: str, dashboards: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": alert.name, "expr": alert.expr}
    if alert.wait:
        rule["for"] = durations.text(alert.wait)
    if alert.keep:
        rule["keep_firing_for"] = durations.text(alert.keep)
    rule["labels"] = {"severity": alert.severity, **labels}
    anchor = "#{{ $labels.cause }}" if alert.causes else ""
    rule["annotations"] = {
        "summary": alert.summary,
        "description": alert.description,
        "affected": alert.affected,
        "impact": alert.traffic,
        "action": first_action(alert.causes) if alert.causes else alert.first,
        "runbook_url": f"{runbooks}/{alert.name}.md{anchor}",
        "dashboard_url": _dashboard(alert, dashboards),
    }
    return rule


def _dashboard(alert: Alert, base: str) -> str:
    """The dashboard with its variables set to the alert's labels, as far as it has them."""
    chosen = "".join(
        f"{{{{ with $labels.{name} }}}}&var-{name}={{{{ . | urlquery }}}}{{{{ end }}}}"
        for name in ("cluster", "namespace", "model_name")
    )
    return f"{base}/d/{alert.dashboard}?orgId=1{chosen}"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as literal blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
