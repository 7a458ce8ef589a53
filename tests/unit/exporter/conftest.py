"""Journals as workers leave them: real files, real locks held by another process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exporter_process import Exporter
from journals import Keeper, Worker

from hicache_obs import events as ev
from hicache_obs import runs
from hicache_obs.events import Event
from hicache_obs.exporter.host import Host


@pytest.fixture(scope="session")
def keeper() -> Iterator[Keeper]:
    one = Keeper()
    yield one
    one.end()


@pytest.fixture
def worker(tmp_path: Path, keeper: Keeper, example: Callable[..., Event]) -> Callable[..., Worker]:
    """Begin a run. Keywords: *at* (seconds on the boot clock, one later than the last run by
    default), *wall* (seconds on the wall clock), *launch*, *port*, *host*, *namespace*, *pod*,
    *tp*, *directory*, *boot*, and fields of ``WorkerStarting``."""
    clock = itertools.count(100)

    def make(**given: Any) -> Worker:
        at = given.pop("at", None) or next(clock)
        wall = given.pop("wall", 1_700_000_000 + at)
        boot = given.pop("boot", runs.boot_id())
        pid = given.pop("pid", at)
        name = f"{boot}-{int(wall * 1e9)}-{pid}-{at:08x}"
        directory = given.pop("directory", tmp_path)
        directory.mkdir(exist_ok=True)
        started = example(
            ev.RunStarted,
            run=name,
            boot_id=boot,
            pid=pid,
            host=given.pop("host", "node"),
            namespace=given.pop("namespace", ""),
            pod=given.pop("pod", ""),
            own_network=given.pop("own_network", False),
            launch=given.pop("launch", f"launch-{at}"),
            boottime_ns=at * 10**9,
        )
        starting = example(
            ev.WorkerStarting,
            server_port=given.pop("port", "30000"),
            tp_rank=given.pop("tp", "0"),
            pp_rank="0",
            dp_rank="",
            extra_labels={},
            mode="standalone",
            hicache=True,
        )
        assert isinstance(started, ev.RunStarted)
        assert isinstance(starting, ev.WorkerStarting)
        return Worker(directory, name, keeper, started, replace(starting, **given)).begin()

    return make


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """A host over *tmp_path* (or *paths*), refreshed once."""
    made: list[Host] = []

    def make(*paths: Path, **how: Any) -> Host:
        one = Host(paths or (tmp_path,), **how)
        one.refresh()
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


@pytest.fixture
def exporter() -> Iterator[Callable[..., Exporter]]:
    made: list[Exporter] = []

    def start(*flags: str, **how: Any) -> Exporter:
        made.append(Exporter(*flags, **how))
        return made[-1]

    yield start
    for one in made:
        if one.process.returncode is None:
            one.end()
        one.close()
