"""``hicache-obs forget``: a server that will not come back."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hicache_obs.cli.directories import journal_directories, look, meanings, printable
from hicache_obs.exporter import forgotten
from hicache_obs.exporter.host import Host


@click.command()
@click.argument("server", metavar="HOST:PORT|POD:PORT")
@journal_directories
def forget(server: str, directories: tuple[Path, ...]) -> None:
    """Forget a decommissioned server: its failures, its info and its counters.

    The exporter that keeps the directory obeys within ten seconds; without one the request waits
    for it. Ends with 0 if the request was left, 1 if the server still runs, 2 if it is not known
    or the request could not be left everywhere. A server without a port is named by its host
    alone; an IPv6 host may stand in brackets. A pod stands for the server that it is.

    Example: hicache-obs forget gpu-node-07:30000
    """
    host = look(directories)
    known = _known(host)
    pods = _pods(host)
    found = next((pods.get(one, one) for one in meanings(server) if one in {**pods, **known}), None)
    if found is None:
        for text in host.not_ready():
            click.echo(f"hicache-obs forget: {printable(text)}", err=True)
        names = ", ".join(sorted(f"{h}:{p}" if p else h for h, p in known)) or "none"
        text = f"{server!r} is not known; known servers: {printable(names)}"
        click.echo(f"hicache-obs forget: {text}", err=True)
        sys.exit(2)
    name, port = found
    alive = [
        run.name.pid
        for directory in host.directories
        for run in directory.runs.values()
        if run.alive and run.server.address == found
    ]
    if alive:
        pids = ", ".join(map(str, alive))
        click.echo(f"hicache-obs forget: {server} still runs (pid {pids}); stop it first", err=True)
        sys.exit(1)
    failed = False
    for path in known[found]:
        try:
            forgotten.ask(path, name, port)
        except OSError as error:
            click.echo(f"hicache-obs forget: {path} cannot be written: {error.strerror}", err=True)
            failed = True
            continue
        click.echo(
            f"{server}: the exporter that keeps {path} forgets it within ten seconds; "
            "if none runs, the request waits for it"
        )
    sys.exit(2 if failed else 0)


def _pods(host: Host) -> dict[tuple[str, str], tuple[str, str]]:
    """Servers by pod and port, where a pod's host name is not its own (host network)."""
    return {
        (run.started.pod, run.server.port): run.server.address
        for directory in host.directories
        for run in directory.runs.values()
        if run.started is not None and run.started.pod
    }


def _known(host: Host) -> dict[tuple[str, str], list[Path]]:
    """The servers that journals or checkpoints tell of, and in which directories."""
    found: dict[tuple[str, str], list[Path]] = {}
    for directory in host.directories:
        here = {run.server.address for run in directory.runs.values()}
        for _, labels in directory.sums.sums:
            row = dict(labels)
            here.add((row.get("host", ""), row.get("server_port", "")))
        for server in here - {("", "")}:
            found.setdefault(server, []).append(directory.path)
    return found
