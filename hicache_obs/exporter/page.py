"""The status page: what a person wants at 3 a.m., first things first."""

from __future__ import annotations

import time as clock
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, Template

from hicache_obs import __version__, causes
from hicache_obs.exporter.directory import READ, UNREADABLE
from hicache_obs.exporter.fold import Failure
from hicache_obs.exporter.view import (
    FAILING,
    STATES,
    STOPPED,
    MismatchView,
    RankView,
    ServerView,
    Snapshot,
)
from hicache_obs.rules.of_failure import alert_of, runbook

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MISMATCH = "HiCacheAllocatorMismatch"
_OLD_S = 60
"""Seconds after which a snapshot is old: the exporter makes one every 10 s."""


@dataclass(frozen=True)
class Told:
    """A failure, said once for all ranks that have it; *time* of the first of them.

    *texts* are the exceptions in words, each with its ranks: one failure may be worded by every
    rank with numbers of its own. *failure* has the first of them. *alert* is the one that it
    fires, *runbook* the address of what to do then; "" where there is none.
    """

    ranks: str
    time: float
    failure: Failure
    cause: causes.Cause
    versions: str
    texts: tuple[tuple[str, str], ...]
    alert: str
    runbook: str


@dataclass(frozen=True)
class Wrong:
    """A harmful mismatch, said once for all ranks that have it."""

    ranks: str
    mismatch: MismatchView
    cause: causes.Cause
    alert: str = _MISMATCH
    runbook: str = runbook(_MISMATCH)


@dataclass(frozen=True)
class FailingServer:
    """What is shown of a server that fails, or will."""

    server: ServerView
    told: tuple[Told, ...]
    wrong: tuple[Wrong, ...]
    peers: str


def render(
    snapshot: Snapshot,
    *,
    show_messages: bool,
    now: float | None = None,
    metrics_path: str = "/metrics",
) -> str:
    """The page. Texts of exceptions only with *show_messages*: they may name hosts and paths.

    Args:
        now: when the page is shown, seconds since the epoch; by default the present. It tells how
            old the snapshot is; all other ages are those at the snapshot's own time.
    """
    shown = [failing(server) for server in snapshot.servers]
    now = clock.time() if now is None else now
    page = _template().render(
        snapshot=snapshot,
        now=now,
        old=now - snapshot.time > _OLD_S,
        counts=[(s, sum(x.state == s for x in snapshot.servers)) for s in STATES],
        failing=[one for one in shown if one.server.state == FAILING],
        warned=[one for one in shown if one.server.state != FAILING and one.wrong],
        calls=[
            (s, rank, call) for s in snapshot.servers for rank in s.ranks for call in rank.calls
        ],
        unread=[one for one in snapshot.directories if one[1] != READ],
        title=title(snapshot, shown),
        show_messages=show_messages,
        metrics_path=metrics_path,
        version=__version__,
    )
    return page.lstrip()


def title(snapshot: Snapshot, shown: Iterable[FailingServer]) -> str:
    """The state of the whole in a few words, the worst first."""
    shown = list(shown)
    fail = sum(one.server.state == FAILING for one in shown)
    if fail:
        return f"{fail} failing"
    warned = sum(bool(one.wrong) for one in shown)
    if warned:
        return f"{warned} with a wrong allocator"
    states = [state for _, state, _ in snapshot.directories]
    if UNREADABLE in states or (shown and any(state != READ for state in states)):
        return "journals not read"
    if not shown:
        return "no server seen"
    return "all stopped" if all(one.server.state == STOPPED for one in shown) else "all well"


def failing(server: ServerView) -> FailingServer:
    """Failures alike but for their rank, time and wording are one; mismatches likewise."""
    alike: dict[tuple[Failure, str], list[tuple[str, Failure]]] = defaultdict(list)
    for rank in server.ranks:
        for failure in rank.failures:
            key = failure._replace(time=0.0, error_type="", error="")
            alike[key, versions(rank)].append((rank.rank, failure))
    return FailingServer(
        server=server,
        told=tuple(_told(found, versions) for (_, versions), found in alike.items()),
        wrong=_wrong(server.ranks),
        peers=spans(r.rank for r in server.ranks if r.start_cause == "peer" and not r.failures),
    )


def _told(found: list[tuple[str, Failure]], versions: str) -> Told:
    first = found[0][1]
    texts: dict[str, list[str]] = defaultdict(list)
    for rank, failure in found:
        text = ": ".join(part for part in (failure.error_type, failure.error) if part)
        if text:
            texts[text].append(rank)
    cause = causes.explain(first.cause or "exception")
    alert = alert_of(first.stage, first.cause)
    return Told(
        ranks=spans(rank for rank, _ in found),
        time=min((f.time for _, f in found if f.time > 0), default=0.0),
        failure=first,
        cause=cause,
        versions=versions,
        texts=tuple((spans(ranks), text) for text, ranks in texts.items()),
        alert=alert,
        runbook=runbook(alert, cause.name),
    )


def _wrong(ranks: Iterable[RankView]) -> tuple[Wrong, ...]:
    alike: dict[MismatchView, list[str]] = defaultdict(list)
    for rank in ranks:
        for mismatch in rank.mismatches:
            if mismatch.harmful:
                alike[mismatch].append(rank.rank)
    return tuple(
        Wrong(spans(names), mismatch, causes.explain(_refusal(mismatch)))
        for mismatch, names in alike.items()
    )


def _refusal(mismatch: MismatchView) -> str:
    """The cause of the failure that a harmful mismatch leads to."""
    return "allocator_required" if mismatch.reason == "backend_requires" else "foreign_buffer"


def anchor(server: ServerView) -> str:
    """The id of a server on the page: ``server-llm.gpu-node-07.sglang-0:30000``; one word."""
    own = server.port or (server.ranks[0].run if server.ranks else "")
    place = ".".join(dict.fromkeys(filter(None, (server.namespace, server.host, server.pod))))
    return quote(f"server-{place}:{own}", safe=":")


def versions(rank: RankView) -> str:
    known = (
        ("SGLang", rank.sglang_version),
        ("Mooncake", rank.mooncake_version),
        ("torch", rank.torch_version),
    )
    return ", ".join(f"{name} {version}" for name, version in known if version)


def spans(ranks: Iterable[str]) -> str:
    """``tp0 pp0, tp1 pp0, tp2 pp0`` as ``tp0 to tp2 pp0``; others one after another."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(ranks):
        head, _, rest = name.partition(" ")
        groups[rest].append(head)
    return ", ".join(filter(None, (_span(heads, rest) for rest, heads in groups.items())))


def _span(heads: list[str], rest: str) -> str:
    tail = f" {rest}" if rest else ""
    numbers = [int(head[2:]) for head in heads if head.startswith("tp") and head[2:].isdecimal()]
    if len(heads) == len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{heads[0]} to {heads[-1]}{tail}"
    return ", ".join(head + tail for head in heads if head + tail)


def size(count: int) -> str:
    """Bytes for people: ``1.06 MiB``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = ".4g" if value < 10_000 else ".0f"
    return f"{value:{digits}} {_UNITS[unit]}" if unit else f"{count} B"


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
    environment.filters.update(size=size, when=when, age=age, anchor=anchor)
    return environment.get_template("page.html.j2")
