"""Which rows of which runs stand: the table "after death" of the design, as functions.

A *server* is a port of a host. Its runs are ordered by the kernel's boot clock, never by the
wall clock. A run is *superseded* once a run of a later start of the same server got past HiCache
start-up, whatever its ranks and pools.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hicache_obs import metrics as m
from hicache_obs.exporter.fold import Key, Run, Server, active

FAILED_RUN_S = 24 * 3600.0
"""Default of ``--retention.failed-run``, seconds."""
FAILED_POD_S = 15 * 60.0
"""Default of ``--retention.failed-pod``, seconds. A kubelet restarts a container within 5 min."""


@dataclass(frozen=True)
class Standing:
    """A run that is served, and the metrics of it that are; None for all."""

    run: Run
    metrics: frozenset[m.Metric] | None

    def rows(self) -> Iterator[tuple[Key, float]]:
        for key, value in self.run.rows.items():
            if self.metrics is None or key[0] in self.metrics:
                yield key, (0.0 if key[0] is m.WORKER_UP and not self.run.alive else value)


def order(runs: Iterable[Run], boot: str) -> list[Run]:
    """*runs*, oldest start first. *boot* is the kernel's present boot id.

    Within a boot the boot clock decides, which no wall clock moves. Earlier boots come first,
    by the last start in each (the wall clock is all there is between boots).
    """
    runs = list(runs)
    last: dict[str, int] = defaultdict(int)
    for run in runs:
        last[run.name.boot] = max(last[run.name.boot], run.name.started_ns)

    def key(run: Run) -> tuple[bool, int, str, int, int, str]:
        own = run.name.boot
        clock = run.started.boottime_ns if run.started else 0
        return (own == boot, last[own], own, clock, run.name.started_ns, run.name.text)

    return sorted(runs, key=key)


def standing(
    ordered: list[Run],
    now: float,
    failed_run_s: float = FAILED_RUN_S,
    failed_pod_s: float = FAILED_POD_S,
) -> list[Standing]:
    """The runs of *ordered* that are served at *now* (seconds since the epoch), oldest first.

    Where two of them have a row with the same labels, what they hold (``metrics.ADDED``) is added
    up; of all else the later one's row holds. A pod that nothing started again for *failed_pod_s*
    is gone, and with it what alerts fire on: its successor has another name, perhaps on another
    host, so nothing would supersede it.
    """
    servers: dict[Server, list[Run]] = defaultdict(list)
    for run in ordered:
        servers[run.server].append(run)
    found: list[Standing] = []
    for runs in servers.values():
        kept = [run for run in runs if run.alive or _kept(run, now, failed_run_s)]
        found += (
            _unpaged(one) if _is_gone(one.run, kept, now, failed_pod_s) else one
            for one in _of_server(kept)
        )
    place = {id(run): number for number, run in enumerate(ordered)}
    return sorted(found, key=lambda one: place[id(one.run)])


def _kept(run: Run, now: float, failed_run_s: float) -> bool:
    return now - run.dead_since < failed_run_s


def _is_gone(run: Run, runs: list[Run], now: float, failed_pod_s: float) -> bool:
    """Whether *run* died in a pod, and nothing was started there for *failed_pod_s* after it.

    *runs* are those of its server. It stays gone when the pod comes back later.
    """
    together = [one for one in runs if one.launch == run.launch]
    if any(one.alive for one in together) or run.started is None or not run.started.pod:
        return False
    after = [one for one in runs[runs.index(run) + 1 :] if one not in together]
    died = max(one.dead_since for one in together)
    back = min((one.name.started_ns / 1e9 for one in after), default=now)
    if back - died >= failed_pod_s:
        return True
    # It was tried again in time: gone is what the newest of these tries is.
    return bool(after) and _is_gone(after[0], runs, now, failed_pod_s)


def _unpaged(one: Standing) -> Standing:
    return Standing(one.run, (one.metrics or m.KEPT) - m.PAGED)


def _of_server(runs: list[Run]) -> Iterator[Standing]:
    runs = _not_superseded(runs)
    ranks: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        ranks[run.rank].append(run)
    for of_rank in ranks.values():
        *older, newest = of_rank
        yield Standing(newest, None if newest.alive else m.KEPT)
        held = _held(older, newest)
        if held is not None:
            yield Standing(held, m.HELD)
        # A process may outlive the start that replaced it; what it holds, it holds.
        for run in older:
            if run.alive and run is not held:
                yield Standing(run, None)


def _not_superseded(runs: list[Run]) -> list[Run]:
    """*runs* from the newest start on that got past HiCache start-up; living ones always."""
    passed = [index for index, run in enumerate(runs) if run.ready]
    if not passed:
        return runs
    newest = runs[passed[-1]].launch
    since = next(index for index, run in enumerate(runs) if run.launch == newest)
    return [run for index, run in enumerate(runs) if run.alive or index >= since]


def _held(older: list[Run], newest: Run) -> Run | None:
    """The run whose failure still stands while nothing newer of its rank failed or got past."""
    if newest.ready or _has_failure(newest):
        return None
    return next((run for run in reversed(older) if _has_failure(run)), None)


def _has_failure(run: Run) -> bool:
    return any(active(run, m.FAILURE_ACTIVE)) or any(active(run, m.MISMATCH))
