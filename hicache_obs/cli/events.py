"""``hicache-obs events``: what the journals hold, merged by time."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from heapq import merge
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from hicache_obs import events as ev
from hicache_obs import runs
from hicache_obs.cli.directories import journal_directories
from hicache_obs.exporter.page import when
from hicache_obs.exporter.tail import JournalTail
from hicache_obs.runs import RunName
from hicache_obs.wire import JournalLineError, Record

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_POLL_S = 0.25


@dataclass
class Journal:
    """A journal that is read, and who its lines are of, as far as they have told."""

    run: RunName
    tail: JournalTail
    host: str = ""
    port: str = ""
    rank: str = ""
    newest: float = 0.0

    def read(self) -> Iterator[Line]:
        more = True
        while more:
            try:
                found, more = self.tail.read()
            except OSError as error:
                click.echo(f"hicache-obs events: {self.tail.path}: {error.strerror}", err=True)
                return
            for record in found:
                if isinstance(record, JournalLineError):
                    click.echo(f"hicache-obs events: {self.tail.path}: {record}", err=True)
                else:
                    yield self._line(record)

    def _line(self, record: Record) -> Line:
        event = record.event
        if isinstance(event, ev.RunStarted):
            self.host = event.host
        elif isinstance(event, ev.WorkerStarting):
            self.port = event.server_port
            named = zip(
                ("tp", "pp", "dp"), (event.tp_rank, event.pp_rank, event.dp_rank), strict=True
            )
            self.rank = " ".join(f"{name}{value}" for name, value in named if value)
        # A clock that is set back does not put a line before the one that it follows.
        self.newest = max(self.newest, record.time)
        return Line(self.newest, self.run.text, self.host, self.port, self.rank, record)


@dataclass(frozen=True)
class Line:
    """One event and who it is of; *place* orders lines of several journals."""

    place: float
    run: str
    host: str
    port: str
    rank: str
    record: Record

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@click.command()
@journal_directories
@click.option("--since", help="Only newer events: 30m, 1h, 2d, or a time like 2026-12-01T03:00Z.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind (repeatable).")
@click.option("--server", help="Only this server, as HOST:PORT.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line.")
def events(
    *,
    directories: tuple[Path, ...],
    since: str | None,
    kinds: tuple[str, ...],
    server: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the events of all journals by time; within a run, as its journal has them.

    A line that cannot be read is named on standard error, and the others go on. Ends with 0, or
    2 if no directory can be read.

    Example: hicache-obs events --since 1h --kind registration
    """
    oldest = _since(since) if since else float("-inf")
    unknown = sorted(set(kinds) - ev.KINDS.keys())
    if unknown:
        every = ", ".join(ev.KINDS)
        raise click.BadParameter(
            f"{unknown[0]!r} is no kind; there are {every}", param_hint="--kind"
        )
    console = Console(highlight=False, soft_wrap=True)

    def show(lines: Iterator[Line]) -> None:
        for line in lines:
            event = line.record.event
            if event is None or line.record.time < oldest or (kinds and event.kind not in kinds):
                continue
            if server is None or line.server == server:
                _show(console, line, event, as_json)

    known: dict[Path, Journal] = {}
    if not _find(directories, known):
        sys.exit(2)
    try:
        show(merge(*(journal.read() for journal in known.values()), key=lambda line: line.place))
        while follow:
            time.sleep(_POLL_S)
            _find(directories, known)
            new = (journal.read() for journal in known.values() if _grew(journal))
            show(merge(*new, key=lambda line: line.place))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _find(directories: tuple[Path, ...], known: dict[Path, Journal]) -> bool:
    """Add the journals that are new; whether any directory could be read."""
    read = False
    for directory in directories:
        try:
            found = runs.list_runs(directory)
        except OSError as error:
            if not known:
                click.echo(f"hicache-obs events: {directory}: {error.strerror}", err=True)
            continue
        read = True
        for run in found:
            path = runs.journal_path(directory, run.text)
            if path not in known and path.exists():
                known[path] = Journal(run, JournalTail(path))
    return read


def _grew(journal: Journal) -> bool:
    try:
        return journal.tail.has_news(journal.tail.path.stat())
    except OSError:
        return False


def _since(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is not None:
        return time.time() - int(match[1]) * _UNITS[match[2]]
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; write for example 30m, 1h, 2d or 2026-12-01T03:00Z",
            param_hint="--since",
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _show(console: Console, line: Line, event: ev.Event, as_json: bool) -> None:
    if as_json:
        row: dict[str, Any] = {
            "time": line.record.time,
            "run": line.run,
            "host": line.host,
            "server_port": line.port,
            "rank": line.rank,
            "seq": line.record.seq,
        }
        click.echo(json.dumps(asdict(event) | row | {"kind": event.kind}))
        return
    fields = " ".join(
        f"{name}={_value(value)}"
        for name, value in asdict(event).items()
        if value not in ("", (), {}, None) and name not in ("run", "boot_id")
    )
    failed = isinstance(event, ev.Outcome) and event.failed
    start = f"{when(line.record.time) or line.record.time} {line.server} {line.rank}"
    text = f"{start.strip()} {event.kind} {fields}"
    if console.is_terminal:
        console.print(Text(text, style="red" if failed else ""))
    else:
        click.echo(text)


def _value(value: object) -> str:
    text = str(value)
    return json.dumps(text) if " " in text or '"' in text or "\n" in text else text
