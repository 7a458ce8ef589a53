"""``hicache-obs export-rules`` and ``export-dashboards``: write what is shipped to a directory."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from hicache_obs.metrics import RESERVED_LABELS
from hicache_obs.rules import JOB, RUNBOOKS
from hicache_obs.rules.render import DASHBOARDS, rules
from hicache_obs.rules.templates import RANK
from hicache_obs.rules.thresholds import ThresholdError, Thresholds
from hicache_obs.share import share

RULE_FILE = "hicache-obs.rules.yml"
OPERATOR_FILE = "hicache-obs.prometheusrule.yaml"
OWN_LABELS = frozenset({"alertname", "severity", "instance", "job", "source", "where"}) | {
    *RANK,
    *RESERVED_LABELS,
} - {"cluster"}
"""Labels that an alert may get from its rows. A cluster is what a site may well have to add."""
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def _labels(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not _LABEL.fullmatch(name) or name.startswith("__"):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE with a label's name")
        if name in OWN_LABELS:
            # It would make two alerts one, and Prometheus then drops the whole rule.
            raise click.BadParameter(f"{name} is a label of the alerts themselves")
        if not value or not _is_plain(value):
            raise click.BadParameter(f"{name}: {value!r} holds a template or no text")
        if found.setdefault(name, value) != value:
            raise click.BadParameter(f"{name} is given twice, as {found[name]!r} and {value!r}")
    return found


def _is_plain(text: str) -> bool:
    """Whether *text* stands for itself in a rule file."""
    return "{{" not in text and all(c.isprintable() for c in text)


def _job(_ctx: click.Context, _param: click.Parameter, given: str) -> str:
    if not given or not _is_plain(given):
        raise click.BadParameter(f"{given!r} is no name of a job")
    return given


def _thresholds(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> Thresholds:
    try:
        return Thresholds().with_changes(given)
    except ThresholdError as error:
        raise click.BadParameter(str(error)) from None


def _address(_ctx: click.Context, _param: click.Parameter, given: str) -> str:
    if not re.fullmatch(r"https?://[^\s?#]+", given) or not _is_plain(given):
        raise click.BadParameter(f"{given!r} is no http or https address of a folder")
    return given


@click.command("export-rules")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--job",
    default=JOB,
    show_default=True,
    callback=_job,
    help="The exporter's job in Prometheus.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_labels,
    help="A label to add to every alert; may be given several times.",
)
@click.option(
    "--runbook-base",
    default=RUNBOOKS,
    show_default=True,
    callback=_address,
    help="Address of the folder with the runbooks.",
)
@click.option(
    "--dashboard-base",
    default=DASHBOARDS,
    show_default=True,
    callback=_address,
    help="Address of Grafana.",
)
@click.option(
    "--threshold",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_thresholds,
    help="Another value for a threshold (docs/alerts.md has them); may be given several times.",
)
@click.option("--operator", is_flag=True, help="As a PrometheusRule of the Prometheus operator.")
def export_rules(
    directory: Path,
    *,
    job: str,
    labels: dict[str, str],
    runbook_base: str,
    dashboard_base: str,
    limits: Thresholds,
    operator: bool,
) -> None:
    """Write the alert and recording rules to DIRECTORY, for Prometheus' rule_files.

    Example: hicache-obs export-rules /etc/prometheus/rules --label team=inference
    """
    text = rules(
        limits,
        job=job,
        labels=labels,
        runbooks=runbook_base,
        dashboards=dashboard_base,
        operator=operator,
    )
    _write("export-rules", directory, [(OPERATOR_FILE if operator else RULE_FILE, text)])


@click.command("export-dashboards")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def export_dashboards(directory: Path) -> None:
    """Write the Grafana dashboards to DIRECTORY, for provisioning or import.

    Example: hicache-obs export-dashboards /var/lib/grafana/dashboards
    """
    try:
        found = sorted((share("dashboards") / "json").glob("*.json"))
    except FileNotFoundError as error:
        click.echo(f"hicache-obs export-dashboards: {error}", err=True)
        sys.exit(1)
    files = [(path.name, path.read_text(encoding="utf-8")) for path in found]
    _write("export-dashboards", directory, files)


def _write(command: str, directory: Path, files: Iterable[tuple[str, str]]) -> None:
    """Each file whole or not at all; what stood there before is replaced."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files:
            hidden = directory / f".{name}.new"
            try:
                hidden.write_text(text, encoding="utf-8")
                hidden.replace(directory / name)
            finally:
                hidden.unlink(missing_ok=True)
            click.echo(directory / name)
    except OSError as error:
        reason = error.strerror or error
        click.echo(f"hicache-obs {command}: cannot write to {directory}: {reason}", err=True)
        sys.exit(1)
