"""``hicache-obs events``: what the journals hold, merged by time.

``--json`` prints one object a line: ``time`` (seconds since the epoch), ``run``, ``host``,
``server_port``, ``rank``, ``seq`` (number of the line in its run), ``kind``, and the fields of that
kind in ``hicache_obs.events``. Host, port and rank are "" until the run has told them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from hicache_obs import events as ev
from hicache_obs import runs
from hicache_obs.cli.directories import journal_directories, meanings, printable
from hicache_obs.durations import seconds
from hicache_obs.exporter.page import when
from hicache_obs.exporter.tail import JournalTail
from hicache_obs.exporter.view import rank_name
from hicache_obs.runs import RunName
from hicache_obs.wire import MAX_LINE_BYTES, JournalLineError, Record, from_line

_CHUNK_BYTES = 1 << 16
"""Read of a journal at once: a start fits, and journals of the same time are read together."""
_POLL_S = 0.25


@dataclass
class Journal:
    """A journal that is read, and who its lines are of, as far as they have told."""

    run: RunName
    tail: JournalTail
    host: str = ""
    pod: str = ""
    port: str = ""
    rank: str = ""
    newest: float = 0.0
    trouble: str = ""

    def read(self) -> Iterator[tuple[float, Line | None]]:
        """What is new, each line with its place among those of other journals.

        Before the first line comes its place alone: a journal whose turn is later is not read
        yet, so that only runs of the same time are in memory together.
        """
        if self.tail.offset == 0:
            yield _first_place(self.tail.path), None
        more = True
        while more:
            try:
                found, more = self.tail.read()
                self.trouble = ""
            except OSError as error:
                reason = error.strerror or str(error)
                if reason != self.trouble:
                    _complain(self.tail.path, reason)
                self.trouble = reason
                return
            for record in found:
                if isinstance(record, JournalLineError):
                    _complain(self.tail.path, str(record))
                else:
                    line = self._line(record)
                    yield self.newest, line

    def _line(self, record: Record) -> Line:
        event = record.event
        if isinstance(event, ev.RunStarted):
            self.host, self.pod = event.host, event.pod
        elif isinstance(event, ev.WorkerStarting):
            self.port = event.server_port
            self.rank = rank_name(event.tp_rank, event.pp_rank, event.dp_rank)
        # A clock that is set back does not put a line before the one that it follows.
        self.newest = max(self.newest, record.time)
        return Line(self.run.text, self.host, self.pod, self.port, self.rank, record)


@dataclass(frozen=True)
class Line:
    """One event and who it is of."""

    run: str
    host: str
    pod: str
    port: str
    rank: str
    record: Record

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host

    def is_of(self, names: Collection[tuple[str, str]]) -> bool:
        """Whether one of *names*, each a host or pod with a port, is the server."""
        return (self.host, self.port) in names or (self.pod, self.port) in names


@click.command()
@journal_directories
@click.option("--since", help="Only newer events: 30m, 1h, 2d, or a time like 2026-12-01T03:00Z.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind (repeatable).")
@click.option("--server", help="Only this server, as HOST:PORT or POD:PORT.")
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
    2 if no directory can be read, or none has a journal of the server that was asked for.

    Example: hicache-obs events --since 1h --kind registration
    """
    oldest = float("-inf") if since is None else _since(since)
    wanted = None if server is None else meanings(server)
    unknown = sorted(set(kinds) - ev.KINDS.keys())
    if unknown:
        every = ", ".join(ev.KINDS)
        raise click.BadParameter(
            f"{unknown[0]!r} is no kind; there are {every}", param_hint="--kind"
        )
    console = Console(highlight=False, soft_wrap=True)
    seen: dict[str, str] = {}
    """The server of each run, as far as it has told."""
    found = wanted is None

    def show(journals: Iterable[Journal]) -> None:
        nonlocal found
        for _, line in merge(*(one.read() for one in journals), key=itemgetter(0)):
            event = line.record.event if line is not None else None
            if line is None or event is None:
                continue
            seen[line.run] = line.server
            if wanted is not None and not line.is_of(wanted):
                continue
            found = True
            if line.record.time >= oldest and (not kinds or event.kind in kinds):
                _show(console, line, event, as_json)

    known: dict[Path, Journal] = {}
    troubles: dict[Path, str] = {}
    try:
        if not _find(directories, known, troubles):
            sys.exit(2)
        show(known.values())
        if not found:
            names = ", ".join(sorted(set(seen.values()))) or "none"
            text = f"no journal is of {server!r}; known servers: {printable(names)}"
            click.echo(f"hicache-obs events: {text}", err=True)
            if not follow:
                sys.exit(2)
        while follow:
            time.sleep(_POLL_S)
            _find(directories, known, troubles)
            show([journal for journal in known.values() if _grew(journal)])
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(path: Path, text: str) -> None:
    click.echo(f"hicache-obs events: {path}: {printable(text)}", err=True)


def _first_place(path: Path) -> float:
    """The place of a journal's first line; 0, before all others, if it does not tell."""
    try:
        fd = runs.open_file(path)
        try:
            start = os.read(fd, MAX_LINE_BYTES)
        finally:
            os.close(fd)
        return max(0.0, from_line(start.partition(b"\n")[0]).time)
    except Exception:  # noqa: BLE001 - whatever it is, reading the journal will tell
        return 0.0


def _find(
    directories: tuple[Path, ...], known: dict[Path, Journal], troubles: dict[Path, str]
) -> bool:
    """Add the journals that are new; whether any directory could be read.

    What keeps one from being read is said once, and is in *troubles* meanwhile.
    """
    read = False
    for directory in directories:
        try:
            found = runs.list_runs(directory)
        except OSError as error:
            reason = error.strerror or str(error)
            if troubles.get(directory) != reason:
                _complain(directory, reason)
            troubles[directory] = reason
            continue
        read = True
        troubles.pop(directory, None)
        for run in found:
            path = runs.journal_path(directory, run.text)
            if path not in known and path.exists():
                known[path] = Journal(run, JournalTail(path, _CHUNK_BYTES))
    return read


def _grew(journal: Journal) -> bool:
    try:
        return journal.tail.has_news(journal.tail.path.stat())
    except OSError:
        return False


def _since(text: str) -> float:
    ago = seconds(text)
    if ago is not None:
        return time.time() - ago
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
        row["kind"] = event.kind
        click.echo(json.dumps(row | asdict(event) | row))
        return
    fields = " ".join(
        f"{name}={_value(value)}"
        for name, value in asdict(event).items()
        if value not in ("", (), {}, None) and name not in ("run", "boot_id")
    )
    failed = isinstance(event, ev.Outcome) and event.failed
    start = f"{when(line.record.time) or line.record.time} {line.server} {line.rank}"
    text = printable(f"{start.strip()} {event.kind} {fields}")
    if console.is_terminal:
        console.print(Text(text, style="red" if failed else ""))
    else:
        click.echo(text)


def _value(value: object) -> str:
    text = str(value)
    plain = text.isprintable()
    return text if plain and not set(' "') & set(text) else json.dumps(text, ensure_ascii=not plain)
