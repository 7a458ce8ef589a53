"""Everything that the journals of a host tell, kept current by one thread and read by many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from platform import python_version
from typing import NamedTuple

from hicache_obs import __version__, runs
from hicache_obs import metrics as m
from hicache_obs.exporter import view
from hicache_obs.exporter.checkpoint import Labels, Series, counters, together
from hicache_obs.exporter.directory import JournalDirectory, Listener
from hicache_obs.exporter.fold import Run
from hicache_obs.exporter.problems import Problems
from hicache_obs.exporter.standing import FAILED_POD_S, FAILED_RUN_S, Standing, order, standing
from hicache_obs.exporter.verdict import judge
from hicache_obs.wire import Record


class Row(NamedTuple):
    """One series: *key* and *labels* say the same, once to compare and once to serve."""

    metric: m.Metric
    key: Labels
    labels: dict[str, str]
    value: float

    @classmethod
    def of(cls, metric: m.Metric, key: Labels, value: float) -> Row:
        return cls(metric, key, dict(key), value)


@dataclass(frozen=True)
class View:
    """What is served, unchanging: every series once, and the *snapshot* for people."""

    rows: tuple[Row, ...]
    snapshot: view.Snapshot


class Host:
    """Journal directories together. ``refresh`` is called by one thread only."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        failed_run_s: float = FAILED_RUN_S,
        failed_pod_s: float = FAILED_POD_S,
        kept_runs: int = runs.MAX_DEAD_RUNS,
        keep: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._boot = runs.boot_id()
        self._retention = failed_run_s, failed_pod_s
        self._kept_runs = kept_runs
        self._clock = clock
        self.problems = Problems()
        self._made: dict[str, tuple[object, list[Row], view.RankView]] = {}
        self._known: tuple[object, ...] = ()
        self.listener: Listener | None = None
        self.directories = [
            JournalDirectory(
                path,
                self._boot,
                self.problems.notice,
                listen=self._listen,
                keep=keep,
                clock=clock,
            )
            for path in paths
        ]
        self.view = View((), view.Snapshot(clock(), (), (), ()))

    def not_ready(self) -> list[str]:
        """A sentence on each directory, and each journal, that cannot be read."""
        reasons = [f"{d.path} is {d.state}: {d.reason}" for d in self.directories if d.reason]
        for directory in self.directories:
            for name in sorted(directory.unreadable.copy()):
                reasons.append(f"{directory.path / name} cannot be read")
        return reasons

    def refresh(self) -> None:
        """Read what is new and make the view of it."""
        died = [run for directory in self.directories for run in directory.look()]
        gone = {id(run) for run in died}
        if died:
            new = [run for run in died if not run.judged]
            judge(died, [r for r in self._runs() if not r.alive and id(r) not in gone])
            for run in new:
                self._listen(run, None)
        now = self._clock()
        stamp = (
            *((d.version, d.state, d.reason, len(d.unreadable)) for d in self.directories),
            sum(self.problems.counts().values()),
            now // 10,  # rows leave by age too, and people see a time
        )
        if stamp == self._known:
            return
        standings = standing(order(self._runs(), self._boot), now, *self._retention)
        for directory in self.directories:
            directory.compact([one.run for one in standings], self._kept_runs)
        self._make(standings, now)
        self._known = stamp

    def close(self) -> None:
        """Let another exporter keep the directories."""
        for directory in self.directories:
            directory.close()

    @property
    def since(self) -> float:
        """When the counters began: seconds since the epoch, over restarts of the exporter."""
        return max((d.sums.since for d in self.directories), default=0.0) or self._clock()

    def _listen(self, run: Run, record: Record | None) -> None:
        if self.listener is not None:
            try:
                self.listener(run, record)
            except Exception as error:  # noqa: BLE001 - whoever listens, the journals are read on
                self.problems.count("listener", f"{run.name.text} could not be told: {error!r}")

    def _runs(self) -> Iterable[Run]:
        return chain.from_iterable(list(d.runs.values()) for d in self.directories)

    def _make(self, standings: list[Standing], now: float) -> None:
        made = {}
        for one in standings:
            name = one.run.name.text
            key = (one.run.version, one.metrics)
            old = self._made.get(name)
            made[name] = old if old is not None and old[0] == key else (key, *_made(one))
        self._made = made
        sums: dict[Series, float] = {}
        for series, value in chain(
            *(d.sums.sums.items() for d in self.directories), *map(counters, self._runs())
        ):
            sums[series] = sums.get(series, 0.0) + value
        kept = [made[one.run.name.text] for one in standings]
        gauges = _joined(row for _, rows, _ in kept for row in rows)
        counts = (Row.of(metric, key, value) for (metric, key), value in sums.items())
        rows = (*gauges, *counts, *self._own())
        self.view = View(
            # The same object while nothing changed: what was made of it can be used again.
            rows=self.view.rows if rows == self.view.rows else rows,
            snapshot=view.Snapshot(
                time=now,
                servers=view.servers(standings, (rank for _, _, rank in kept)),
                directories=tuple((str(d.path), d.state, d.reason) for d in self.directories),
                problems=self.problems.told(),
            ),
        )

    def _own(self) -> list[Row]:
        """Of the exporter itself."""
        build = (("python_version", python_version()), ("version", __version__))
        rows = [Row.of(m.OBS_BUILD, build, 1.0)]
        for result in ("event", "skew", "broken"):
            total = sum(d.lines[result] for d in self.directories)
            rows.append(Row.of(m.JOURNAL_LINES, (("result", result),), total))
        live = sum(run.alive for run in self._runs())
        dead = sum(len(d.sums.ended) for d in self.directories)
        rows += [
            Row.of(m.JOURNAL_RUNS, (("state", state),), float(count))
            for state, count in (("live", live), ("dead", dead))
        ]
        for state in ("read", "waiting", "unreadable"):
            count = sum(d.state == state for d in self.directories)
            rows.append(Row.of(m.JOURNAL_DIRECTORIES, (("state", state),), float(count)))
        rows += [
            Row.of(m.OBS_ERRORS, (("where", f"exporter_{where}"),), float(count))
            for where, count in self.problems.counts().items()
        ]
        return rows


def _made(one: Standing) -> tuple[list[Row], view.RankView]:
    worker = one.run.labels
    rows = [
        Row.of(metric, together(worker, metric, labels), value)
        for (metric, labels), value in one.rows()
    ]
    return rows, view.rank_view(one)


def _joined(rows: Iterable[Row]) -> Iterable[Row]:
    """Each series once: of rows with the same labels the sum where it is one of what processes
    hold, else the last."""
    joined: dict[Series, Row] = {}
    for row in rows:
        series = row.metric, row.key
        before = joined.get(series)
        if before is not None and row.metric in m.ADDED:
            joined[series] = row._replace(value=before.value + row.value)
        else:
            joined[series] = row
    return joined.values()
