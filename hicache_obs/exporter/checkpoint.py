"""Counters that outlive journals: one file in a journal directory.

It holds the sums over runs that ended, and the names of those of them whose journals may still
be there, with their verdicts, so that none is counted twice. It is replaced whole, by a rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hicache_obs import runs
from hicache_obs.exporter.fold import Run, Verdict
from hicache_obs.metrics import METRICS, Metric

NAME = "checkpoint.json"
VERSION = 1
Labels = tuple[tuple[str, str], ...]
Series = tuple[Metric, Labels]
_BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass
class Checkpoint:
    """*sums* by series, *ended* runs by name (with the verdict of those that have one), and when
    they were last known to live; *since* when is counted. Times in seconds since the epoch."""

    sums: dict[Series, float] = field(default_factory=dict)
    ended: dict[str, Verdict | None] = field(default_factory=dict)
    died: dict[str, float] = field(default_factory=dict)
    since: float = 0.0

    def take_in(self, run: Run) -> None:
        """Add a dead run's counters, once; the run keeps none."""
        if run.name.text not in self.ended:
            for series, value in counters(run):
                self.sums[series] = self.sums.get(series, 0.0) + value
            self.ended[run.name.text] = run.verdict
            self.died[run.name.text] = run.dead_since
        run.counters.clear()


def counters(run: Run) -> Iterator[tuple[Series, float]]:
    """The counters of a run by series."""
    worker = run.labels
    for (metric, labels), value in run.counters.items():
        yield (metric, together(worker, metric, labels)), value


def together(worker: Labels, metric: Metric, labels: tuple[str, ...]) -> Labels:
    """The labels of a worker and of one row, sorted by name as they are served."""
    return tuple(sorted((*worker, *zip(metric.labels, labels, strict=True))))


def load(directory: Path) -> Checkpoint:
    """The directory's checkpoint, an empty one if there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none.
    """
    try:
        with os.fdopen(runs.open_file(directory / NAME), encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return Checkpoint()
    try:
        return _decode(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{directory / NAME} is no checkpoint: {error}") from None


def _decode(row: dict[str, Any]) -> Checkpoint:
    sums: dict[Series, float] = {}
    for name, labels, value in row["sums"]:
        metric = _BY_NAME.get(name)
        if metric is None:  # of another version
            continue
        key = (metric, tuple(sorted((str(k), str(v)) for k, v in labels)))
        sums[key] = sums.get(key, 0.0) + float(value)
    ended = {
        str(name): None if verdict is None else Verdict(*(str(word) for word in verdict))
        for name, verdict in row["ended"].items()
    }
    # Not there in the first releases.
    died = {str(name): float(when) for name, when in row.get("died", {}).items()}
    return Checkpoint(sums, ended, died, float(row.get("since", 0.0)))


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the directory's checkpoint.

    Raises:
        OSError: it cannot be written; the old one is left as it was.
    """
    row = {
        "v": VERSION,
        "since": checkpoint.since,
        "sums": [[m.name, labels, value] for (m, labels), value in checkpoint.sums.items()],
        "ended": checkpoint.ended,
        "died": {name: round(when, 3) for name, when in checkpoint.died.items()},
    }
    new = directory / f".{NAME}.new"
    new.unlink(missing_ok=True)  # of one that was killed; never through a link
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(row, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, directory / NAME)
