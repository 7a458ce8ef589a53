"""``hicache-obs status``: what the status page shows, read from the journals, in a terminal.

``--json`` prints one object with the keys

- ``v``: 1; keys are added, never changed, within a version
- ``time``: seconds since the epoch, as all times here
- ``servers``, failing ones first: ``host``, ``port``, ``namespace``, ``pod``, ``model_name``,
  ``state`` (``failing``, ``starting``, ``up``, ``stopped``) and ``ranks``
- of a rank: ``run``, ``rank``, ``pid``, ``alive``, ``state``, ``started``, ``last_event``,
  ``sglang_version``, ``mooncake_version``, ``torch_version``, ``mode``, ``draft_builder``,
  ``start_cause`` and the lists

  - ``failures``: ``time``, ``stage``, ``mode``, ``role``, ``pool``, ``allocator``, ``bytes``,
    ``code``, ``cause``, ``error_type``, ``error``
  - ``mismatches``: ``role``, ``pool``, ``expected``, ``actual``, ``reason``, ``harmful``
  - ``pools``: ``role``, ``pool``, ``allocator``, ``requested_allocator``, ``bytes``, ``tokens``,
    ``registered`` (null where it need not be)
  - ``calls`` that have not come back: ``api``, ``role``, ``pool``, ``bytes``, ``since``

- ``directories``: ``path``, ``state`` (``read``, ``waiting``, ``unreadable``), ``reason``
- ``problems``: sentences about what could not be read
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hicache_obs.cli.directories import journal_directories, look, printable
from hicache_obs.exporter.directory import READ
from hicache_obs.exporter.page import FailingServer, age, failing, size, when
from hicache_obs.exporter.view import FAILING, STOPPED, ServerView, Snapshot

_REGISTERED = {True: "yes", False: "no", None: "not needed"}
_COLOURS = {"failing": "bold red", "starting": "yellow", "up": "green", "stopped": "dim"}


@click.command()
@journal_directories
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def status(directories: tuple[Path, ...], as_json: bool) -> None:
    """Show failing servers and why, then every host pool by server and rank.

    Reads the journals itself; an exporter need not run. Ends with 0 if nothing fails, 1 if a
    server does (or has an allocator whose registration will be refused), else 2 if a journal or
    a directory cannot be read. Piped, it prints a line a fact, separated by tabs; the first
    column says what it is: server, failure, mismatch, call, pool, directory.

    Example: hicache-obs status --json
    """
    host = look(directories)
    snapshot = host.view.snapshot
    if all(state != READ for _, state, _ in snapshot.directories):
        for path, state, reason in snapshot.directories:
            click.echo(f"hicache-obs status: {path} is {state}: {reason}", err=True)
        sys.exit(2)
    console = Console(highlight=False)
    if as_json:
        click.echo(json.dumps(_plain(snapshot), indent=2))
    elif console.is_terminal:
        _print(console, snapshot)
    else:
        for line in _lines(snapshot):
            click.echo("\t".join(printable(" ".join(part.split())) for part in line))
    for text in () if as_json else snapshot.problems:
        click.echo(f"hicache-obs status: {printable(text)}", err=True)
    if any(_fails(server) for server in snapshot.servers):
        sys.exit(1)
    sys.exit(2 if host.not_ready() else 0)


def _fails(server: ServerView) -> bool:
    return server.state == FAILING or any(
        mismatch.harmful for rank in server.ranks for mismatch in rank.mismatches
    )


def _name(server: ServerView) -> str:
    return f"{server.host}:{server.port}" if server.port else server.host


def _title(server: ServerView) -> str:
    """The name, and that of the pod where pages call the server by it."""
    pod = server.pod if server.pod != server.host else ""
    return f"{_name(server)} (pod {pod})" if pod else _name(server)


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as JSON can carry it; keys are those of ``exporter.view``."""
    servers = []
    for server in snapshot.servers:
        ranks = [
            vars(rank)
            | {
                name: [row._asdict() for row in getattr(rank, name)]
                for name in ("failures", "mismatches", "pools", "calls")
            }
            for rank in server.ranks
        ]
        servers.append(vars(server) | {"ranks": ranks})
    directories = [
        {"path": path, "state": state, "reason": reason}
        for path, state, reason in snapshot.directories
    ]
    return {
        "v": 1,
        "time": snapshot.time,
        "servers": servers,
        "directories": directories,
        "problems": list(snapshot.problems),
    }


def _lines(snapshot: Snapshot) -> Iterator[tuple[str, ...]]:
    for server in snapshot.servers:
        name = _name(server)
        yield "server", name, server.state, server.model_name, server.namespace, server.pod
        for rank in server.ranks:
            for f in rank.failures:
                where = (f.stage, f.mode, f.role, f.pool, f.allocator, str(f.bytes), f.code)
                yield "failure", name, rank.rank, *where, f.cause, f.error_type, f.error
            for m in rank.mismatches:
                harm = "harmful" if m.harmful else "harmless"
                yield "mismatch", name, rank.rank, m.role, m.pool, m.expected, m.actual, harm
            for c in rank.calls:
                yield "call", name, rank.rank, c.api, c.role, c.pool, str(c.bytes), when(c.since)
            for p in rank.pools:
                facts = (p.role, p.pool, p.allocator, str(p.bytes), _REGISTERED[p.registered])
                yield "pool", name, rank.rank, rank.state, *facts
    for path, state, reason in snapshot.directories:
        yield "directory", path, state, reason


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text, keep="\n"), style=style)


def _print(console: Console, snapshot: Snapshot) -> None:
    for server in snapshot.servers:
        if server.state == FAILING:
            _print_failing(console, failing(server), snapshot.time)
    if snapshot.servers:
        if not any(_fails(server) for server in snapshot.servers):
            console.print(_text("nothing fails", style="green"))
        console.print(_pools(snapshot))
    else:
        console.print("No server has left a journal here.")
    for text in _notes(snapshot):
        console.print(_text(text, style="yellow"), soft_wrap=True)


def _pools(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("server", overflow="fold")
    for column in ("rank", "state", "role", "pool", "allocator"):
        table.add_column(column, no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("registered", no_wrap=True)
    for server in snapshot.servers:
        for rank in server.ranks:
            state = _text(rank.state, style=_COLOURS[rank.state])
            start = (_text(_title(server)), _text(rank.rank), state)
            for p in rank.pools:
                pool = (_text(p.role), _text(p.pool), _text(p.allocator))
                table.add_row(*start, *pool, size(p.bytes), _REGISTERED[p.registered])
            if not rank.pools:
                table.add_row(*start)
    return table


def _notes(snapshot: Snapshot) -> Iterator[str]:
    """Calls in progress, what ended servers died of, and directories that cannot be read."""
    for server in snapshot.servers:
        for rank in server.ranks:
            for f in rank.failures if rank.state == STOPPED else ():
                yield f"gone         {_title(server)} {rank.rank} had failed: {f.stage} {f.cause}"
            for c in rank.calls:
                where = f"{_name(server)} {rank.rank}: {c.api} {c.role} {c.pool} {size(c.bytes)}"
                yield f"in progress  {where}, entered {age(c.since, snapshot.time)}"
    for path, state, reason in snapshot.directories:
        if state != READ:
            yield f"{path} is {state}: {reason}"


def _print_failing(console: Console, one: FailingServer, now: float) -> None:
    console.print(_text(f"{_title(one.server)} is failing", style="bold red"))
    for told in one.told:
        f = told.failure
        of = f" of the {f.role} host pool (pool {f.pool})" if f.pool else ""
        console.print(_text(f"  {f.stage or 'start'}{of}: {f.cause}", style="bold"))
        facts = {
            "ranks": told.ranks,
            "when": f"{when(told.time)} ({age(told.time, now)})" if told.time else "",
            "allocator": f.allocator,
            "bytes": f"{size(f.bytes)} ({f.bytes})" if f.bytes else "",
            "code": f.code,
            "store": f.mode,
            "versions": told.versions,
        }
        for key, value in facts.items():
            if value:
                console.print(_text(f"    {key:10}{value}"))
        for ranks, text in told.texts:
            console.print(_text(f"    {ranks}: {text}" if ranks else f"    {text}", style="dim"))
        console.print(_text(f"    means     {told.cause.meaning}"))
        console.print(_text(f"    do        {told.cause.action}", style="green"))
    for wrong in one.wrong:
        m = wrong.mismatch
        text = f"  the {m.role} pool ({m.pool}) has {m.actual} where {m.expected} is needed"
        console.print(_text(text, style="yellow"))
    if one.peers:
        console.print(_text(f"  ended because another rank had failed: {one.peers}", style="dim"))
    console.print()
