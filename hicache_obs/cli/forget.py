"""``hicache-obs forget``: a server that will not come back."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

import click

from hicache_obs.cli.directories import journal_directories, look, meanings, printable
from hicache_obs.exporter import forgotten
from hicache_obs.exporter.fold import Run
from hicache_obs.exporter.host import Host


@click.command()
@click.argument("server", metavar="[NAMESPACE/]HOST:PORT")
@journal_directories
def forget(server: str, directories: tuple[Path, ...]) -> None:
    """Forget a decommissioned server: its failures, its info and its counters.

    The exporter that keeps the directory obeys within ten seconds; without one the request waits
    for it. Ends with 0 if the request was left, 1 if the server still runs, 2 if it is not known
    or the request could not be left everywhere. A server without a port is named by its host
    alone; an IPv6 host may stand in brackets. A pod's name will do for the host, and its namespace
    is needed where pods of two have one name.

    Example: hicache-obs forget gpu-node-07:30000
    """
    host = look(directories)
    known = _known(host)
    namespace, _, name = server.rpartition("/")
    found = next(filter(None, (_named(known, namespace, *one) for one in meanings(name))), [])
    if not found:
        for text in host.not_ready():
            click.echo(f"hicache-obs forget: {printable(text)}", err=True)
        _refuse(f"{server!r} is not known; known servers: {_names(known)}")
    if len({(one.namespace, one.address) for one in found}) > 1:
        _refuse(f"{server!r} may be one of {_names(found)}; name its namespace too")
    one = found[0]
    alive = [
        run.name.pid
        for directory in host.directories
        for run in directory.runs.values()
        if run.alive and one.is_of(run)
    ]
    if alive:
        pids = ", ".join(map(str, alive))
        click.echo(f"hicache-obs forget: {server} still runs (pid {pids}); stop it first", err=True)
        sys.exit(1)
    failed = False
    for path in dict.fromkeys(each.path for each in found):
        try:
            forgotten.ask(path, *one.address, one.namespace if namespace else "")
        except OSError as error:
            click.echo(f"hicache-obs forget: {path} cannot be written: {error.strerror}", err=True)
            failed = True
            continue
        click.echo(
            f"{server}: the exporter that keeps {path} forgets it within ten seconds; "
            "if none runs, the request waits for it"
        )
    sys.exit(2 if failed else 0)


class _Known(NamedTuple):
    """A server that a journal or checkpoint in *path* tells of."""

    namespace: str
    address: tuple[str, str]
    host: str
    pod: str
    path: Path

    def is_of(self, run: Run) -> bool:
        return (run.namespace, run.server.address) == (self.namespace, self.address)


def _known(host: Host) -> set[_Known]:
    found = set()
    for directory in host.directories:
        path = directory.path
        for run in directory.runs.values():
            if run.started is not None:
                place = run.started.host, run.started.pod, path
                found.add(_Known(run.started.namespace, run.server.address, *place))
        own = {(one.namespace, one.address) for one in found if one.address[0] == one.pod}
        for _, labels in directory.sums.sums:
            row = dict(labels)
            namespace, node, pod, port = (
                row.get(name, "") for name in ("namespace", "host", "pod", "server_port")
            )
            name = pod if (namespace, (pod, port)) in own else node
            found.add(_Known(namespace, (name, port), node, pod, path))
    return {one for one in found if one.address != ("", "")}


def _named(known: set[_Known], namespace: str, host: str, port: str) -> list[_Known]:
    """Those of *known* that the name may mean: by their host, else by their pod."""
    there = sorted(
        one for one in known if one.address[1] == port and namespace in ("", one.namespace)
    )
    by_host = [one for one in there if host in (one.host, one.address[0])]
    return by_host or [one for one in there if one.pod == host]


def _names(known: Iterable[_Known]) -> str:
    named = sorted({(one.namespace, *one.address) for one in known})
    texts = [
        (f"{namespace}/" if namespace else "") + (f"{host}:{port}" if port else host)
        for namespace, host, port in named
    ]
    return printable(", ".join(texts) or "none")


def _refuse(text: str) -> NoReturn:
    click.echo(f"hicache-obs forget: {text}", err=True)
    sys.exit(2)
