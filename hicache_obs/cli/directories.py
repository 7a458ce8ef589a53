"""What the commands that read journals share: directories, names of servers, safe texts."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hicache_obs import config, runs
from hicache_obs.exporter.host import Host

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _default() -> tuple[Path, ...]:
    """Where workers of this host write when nothing is set: as ``runs.choose_state_dir``.

    Of the two places those that are there; the first where none is yet.
    """
    settings = config.load()
    for problem in settings.problems:
        click.echo(f"hicache-obs: {problem}", err=True)
    if settings.state_dir is not None:
        return (settings.state_dir,)
    places = [config.SYSTEM_STATE_DIR]
    with contextlib.suppress(OSError):
        places.append(runs.user_state_dir())
    return tuple(place for place in places if place.is_dir()) or (config.SYSTEM_STATE_DIR,)


def _chosen(
    _ctx: click.Context, _param: click.Parameter, given: tuple[Path, ...]
) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(given or _default()))


def journal_directories(command: _Command) -> _Command:
    """The option ``--journal.dir``, repeatable, as parameter ``directories``."""
    option = click.option(
        "--journal.dir",
        "directories",
        type=click.Path(path_type=Path, file_okay=False, readable=False),  # it may become so
        multiple=True,
        callback=_chosen,
        help="Journal directory; may be given several times (default: HICACHE_OBS_STATE_DIR, else "
        "/var/lib/hicache-obs and the user's state directory).",
    )
    return option(command)


def look(directories: tuple[Path, ...]) -> Host:
    """What the journals of *directories* tell now; nothing there is changed.

    What could not be read is in the host's snapshot, for the command to say: without a handler,
    Python would print the exporter's log lines as well.
    """
    logging.getLogger("hicache_obs.exporter").addHandler(logging.NullHandler())
    host = Host(directories, keep=False)
    host.refresh()
    return host


def meanings(server: str) -> tuple[tuple[str, str], ...]:
    """Host and port that the name of a *server* may mean, the likelier first.

    ``HOST:PORT``, ``[HOST]:PORT``, and ``HOST``, ``HOST:`` or ``[HOST]`` for a server without a
    port. A bare IPv6 host has colons of its own, so it may mean two things.
    """
    host, colon, port = server.rpartition(":")
    whole = (server.strip("[]"), "")
    if not colon or server.endswith("]"):
        return (whole,)
    return ((host.strip("[]"), port), whole)


def printable(text: str, keep: str = "") -> str:
    """*text* without control characters, but for those in *keep*: it comes from a journal, and
    may hold what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )
