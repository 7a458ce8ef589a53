"""The status page: what a person wants at 3 a.m., first things first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache

from jinja2 import Environment, PackageLoader, Template

from hicache_obs import __version__, causes
from hicache_obs.exporter.fold import Failure
from hicache_obs.exporter.view import (
    FAILING,
    STATES,
    MismatchView,
    RankView,
    ServerView,
    Snapshot,
)

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Told:
    """A failure, said once for all ranks that have it; *time* of the first of them."""

    ranks: str
    time: float
    failure: Failure
    cause: causes.Cause
    versions: str


@dataclass(frozen=True)
class FailingServer:
    """What is shown of a server that fails."""

    server: ServerView
    told: tuple[Told, ...]
    mismatches: tuple[MismatchView, ...]
    peers: str


def render(snapshot: Snapshot, *, show_messages: bool) -> str:
    """The page. Texts of exceptions only with *show_messages*: they may name hosts and paths."""
    page = _template().render(
        snapshot=snapshot,
        counts=[(s, sum(x.state == s for x in snapshot.servers)) for s in STATES],
        failing=[failing(s) for s in snapshot.servers if s.state == FAILING],
        warned=[s for s in snapshot.servers if s.state != FAILING and _harmful(s.ranks)],
        calls=[
            (s, rank, call) for s in snapshot.servers for rank in s.ranks for call in rank.calls
        ],
        show_messages=show_messages,
        version=__version__,
    )
    return page.lstrip()


def failing(server: ServerView) -> FailingServer:
    """Failures alike but for their rank and time are one."""
    alike: dict[tuple[Failure, str], list[tuple[str, float]]] = defaultdict(list)
    for rank in server.ranks:
        for failure in rank.failures:
            found = (rank.rank, failure.time)
            alike[failure._replace(time=0.0), versions(rank)].append(found)
    return FailingServer(
        server=server,
        told=tuple(
            Told(
                ranks=spans(rank for rank, _ in found),
                time=min(time for _, time in found),
                failure=failure,
                cause=causes.explain(failure.cause),
                versions=versions,
            )
            for (failure, versions), found in alike.items()
        ),
        mismatches=_harmful(server.ranks),
        peers=spans(r.rank for r in server.ranks if r.start_cause == "peer" and not r.failures),
    )


def _harmful(ranks: Iterable[RankView]) -> tuple[MismatchView, ...]:
    return tuple(dict.fromkeys(m for rank in ranks for m in rank.mismatches if m.harmful))


def versions(rank: RankView) -> str:
    known = (
        ("SGLang", rank.sglang_version),
        ("Mooncake", rank.mooncake_version),
        ("torch", rank.torch_version),
    )
    return ", ".join(f"{name} {version}" for name, version in known if version)


def spans(ranks: Iterable[str]) -> str:
    """``tp0 pp0, tp1 pp0, tp2 pp0`` as ``tp0 to tp2 pp0``; others one after another."""
    names = list(dict.fromkeys(ranks))
    split = [name.partition(" ") for name in names]
    rests = {rest for _, _, rest in split}
    numbers = [
        int(head[2:]) for head, _, _ in split if head.startswith("tp") and head[2:].isdigit()
    ]
    run = numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else False
    if len(names) > 2 and len(numbers) == len(names) and len(rests) == 1 and run:
        rest = rests.pop()
        return f"tp{numbers[0]} to tp{numbers[-1]}" + (f" {rest}" if rest else "")
    return ", ".join(name for name in names if name)


def size(count: int) -> str:
    """Bytes for people: ``1.06 MiB``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}" if unit else f"{count} B"


def when(time: float) -> str:
    """UTC, ISO; "" for no or an impossible time."""
    if time <= 0:
        return ""
    try:
        moment = datetime.fromtimestamp(time, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return ""
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


def age(time: float, now: float) -> str:
    """``3 min ago``; ``in the future`` where clocks disagree."""
    seconds = now - time
    if seconds < -1:
        return "in the future by this clock"
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds // unit))} {name} ago"
    return f"{int(seconds // 86400)} days ago"


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("hicache_obs.exporter", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(size=size, when=when, age=age)
    return environment.get_template("page.html.j2")
