"""What people are shown: failing servers first, then every server's ranks and pools.

The status page and ``hicache-obs status`` both show a ``Snapshot``; it is plain data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hicache_obs import metrics as m
from hicache_obs.exporter.fold import Failure, Run, Server, active
from hicache_obs.exporter.standing import Standing

FAILING, STARTING, UP, STOPPED = "failing", "starting", "up", "stopped"
STATES = (FAILING, STARTING, UP, STOPPED)


class PoolView(NamedTuple):
    """A host pool of a rank. *registered* is None where it need not be registered."""

    role: str
    pool: str
    allocator: str
    requested_allocator: str
    bytes: int
    tokens: int
    registered: bool | None


class CallView(NamedTuple):
    """A native call that has not come back; *since* in seconds since the epoch."""

    api: str
    role: str
    pool: str
    bytes: int
    since: float


class MismatchView(NamedTuple):
    role: str
    pool: str
    expected: str
    actual: str
    reason: str
    harmful: bool


@dataclass(frozen=True)
class RankView:
    """One run that stands. *rank* is e.g. ``tp0 pp0``; times in seconds since the epoch.

    A pod that is gone is ``stopped``, whatever it died of.
    """

    run: str
    rank: str
    pid: int
    alive: bool
    state: str
    started: float
    last_event: float
    sglang_version: str
    mooncake_version: str
    torch_version: str
    mode: str
    draft_builder: str
    start_cause: str
    failures: tuple[Failure, ...]
    mismatches: tuple[MismatchView, ...]
    pools: tuple[PoolView, ...]
    calls: tuple[CallView, ...]


@dataclass(frozen=True)
class ServerView:
    """A server: a port of a host, with the ranks of it that stand."""

    host: str
    port: str
    namespace: str
    pod: str
    model_name: str
    state: str
    ranks: tuple[RankView, ...]


@dataclass(frozen=True)
class Snapshot:
    """Everything, at *time* (seconds since the epoch); failing servers come first.

    *directories* are ``(path, state, reason)``; *problems* are sentences about ourselves.
    """

    time: float
    servers: tuple[ServerView, ...]
    directories: tuple[tuple[str, str, str], ...]
    problems: tuple[str, ...]


def servers(standings: Iterable[Standing], ranks: Iterable[RankView]) -> tuple[ServerView, ...]:
    """Group the *ranks* (one for each of *standings*) by server; failing ones first.

    A run whose journal said nothing, or cannot be read, is no server yet.
    """
    groups: dict[Server, list[tuple[Run, RankView]]] = defaultdict(list)
    for one, rank in zip(standings, ranks, strict=True):
        if one.run.last_event:
            groups[one.run.server].append((one.run, rank))
    found = [_server(server, group) for server, group in groups.items()]
    return tuple(sorted(found, key=lambda s: (STATES.index(s.state), s.host, s.port)))


def _server(server: Server, group: list[tuple[Run, RankView]]) -> ServerView:
    newest = group[-1][0]
    states = {rank.state for _, rank in group}
    started, worker = newest.started, newest.worker
    return ServerView(
        host=started.host if started else "",
        port=server.port,
        namespace=newest.namespace,
        pod=started.pod if started else "",
        model_name=worker.model_name if worker else "",
        state=next(state for state in STATES if state in states),
        ranks=tuple(sorted((rank for _, rank in group), key=lambda rank: _natural(rank.rank))),
    )


def _natural(rank: str) -> list[tuple[int, str]]:
    return [(len(part), part) for part in rank.split()]


def rank_view(one: Standing) -> RankView:
    """What a standing run looks like; of a dead one only what stands after death."""
    run, worker = one.run, one.run.worker
    failures = _failures(run)
    gone = one.metrics is not None and m.FAILURE_ACTIVE not in one.metrics
    return RankView(
        run=run.name.text,
        rank=rank_name(*run.rank),
        pid=run.name.pid,
        alive=run.alive,
        state=STOPPED if gone else _state(run, failures),
        started=run.name.started_ns / 1e9,
        last_event=run.last_event,
        sglang_version=worker.sglang_version if worker else "",
        mooncake_version=worker.mooncake_version if worker else "",
        torch_version=worker.torch_version if worker else "",
        mode=worker.mode if worker else "",
        draft_builder=next((labels[0] for labels in active(run, m.DRAFT_BUILDER)), ""),
        start_cause=_start_cause(run),
        failures=failures,
        mismatches=tuple(
            MismatchView(role, pool, expected, actual, reason, harmful == "true")
            for role, pool, expected, actual, reason, harmful in active(run, m.MISMATCH)
        ),
        pools=_pools(run) if one.metrics is None or m.POOL_INFO in one.metrics else (),
        calls=tuple(
            CallView(call.api, call.role, call.pool, call.bytes, call.since)
            for call in run.calls.values()
            if run.alive
        ),
    )


def rank_name(*ranks: str) -> str:
    """The ranks tp, pp and dp as ``tp0 pp0``; one that SGLang does not have is left out."""
    named = zip(("tp", "pp", "dp"), ranks, strict=True)
    return " ".join(f"{name}{value}" for name, value in named if value)


def _state(run: Run, failures: tuple[Failure, ...]) -> str:
    if failures or (run.failed and not run.ready) or _start_cause(run) == "peer":
        return FAILING
    if not run.alive:
        return STOPPED
    return UP if run.ready else STARTING


def _start_cause(run: Run) -> str:
    """Why the start ended, where it did not succeed."""
    if run.failed is not None:
        return run.failed.cause
    return run.verdict.cause if run.verdict is not None else ""


def _failures(run: Run) -> tuple[Failure, ...]:
    """The failures that stand, each with what the newest event said of it, if it is that one."""
    found = []
    for stage, mode, role, pool, allocator, code, cause in active(run, m.FAILURE_ACTIVE):
        last = run.failure
        same = last is not None and (last.role, last.pool, last.code) == (role, pool, code)
        told = last if last is not None and same else Failure(0, *_BLANK)
        found.append(
            told._replace(
                stage=stage,
                mode=mode,
                role=role,
                pool=pool,
                allocator=allocator,
                code=code,
                cause=cause,
            )
        )
    if not found and run.failed is not None and not run.ready and run.failed.cause != "peer":
        failed = run.failed
        last = run.failure if run.failure is not None else Failure(0, *_BLANK)
        told = last._replace(error_type=failed.error_type, error=failed.error)
        found.append(told._replace(stage=failed.stage, cause=failed.cause))
    return tuple(found)


_BLANK = ("", "", "", "", "", 0, "", "", "", "")


def _pools(run: Run) -> tuple[PoolView, ...]:
    expected = set(active(run, m.POOL_EXPECTED))
    registered = set(active(run, m.POOL_REGISTERED)) if run.alive else set()
    return tuple(
        PoolView(
            role=role,
            pool=pool,
            allocator=facts.allocator,
            requested_allocator=facts.requested_allocator,
            bytes=facts.bytes,
            tokens=facts.tokens,
            registered=(role, pool) in registered if (role, pool) in expected else None,
        )
        for (role, pool), facts in run.pools.items()
    )
