"""The commands of hicache-obs."""

from __future__ import annotations

import click

from hicache_obs import __version__
from hicache_obs.cli.demo import demo
from hicache_obs.cli.doctor import doctor
from hicache_obs.cli.events import events
from hicache_obs.cli.explain import explain
from hicache_obs.cli.export import export_dashboards, export_rules
from hicache_obs.cli.exporter import exporter
from hicache_obs.cli.forget import forget
from hicache_obs.cli.status import status


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hicache-obs")
def main() -> None:
    """Observe SGLang HiCache host pools and their registration with Mooncake.

    The plug-in needs no command: it works as soon as the package is installed beside SGLang.

    Example: hicache-obs doctor
    """


for command in (
    *(demo, doctor, events, explain, export_dashboards, export_rules, exporter, forget, status),
):
    main.add_command(command)
