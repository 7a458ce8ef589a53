"""Which journal directories a command looks at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hicache_obs import config, runs

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
        type=click.Path(path_type=Path, file_okay=False),
        multiple=True,
        callback=_chosen,
        help="Journal directory; may be given several times (default: HICACHE_OBS_STATE_DIR, else "
        "/var/lib/hicache-obs and the user's state directory).",
    )
    return option(command)
