"""A world to ask: what the exporter and SGLang's own /metrics serve of the same ranks.

The rows are what the real exporter and the live path make of the same events. Each choice of
sources is a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from journals import (
    BUILT,
    ENTERED,
    MISMATCH,
    POOL,
    POOL_REGISTERED,
    READY,
    REFUSED,
    REGISTERED,
    THE_BUG,
    WORKER,
    Keeper,
    Worker,
    served,
)

from hicache_obs import events as ev
from hicache_obs import runs
from hicache_obs.events import Event
from hicache_obs.exporter.host import Host
from hicache_obs.metrics import WORKER_LABELS
from hicache_obs.updates import updates

TARGET = {"role": "target", "pool": "kv"}
LIVES: tuple[Event, ...] = (
    ev.HooksReported(installed=15, pending=0, missing=("sglang.srt:gone",)),
    ev.DraftBuilderReported(state="applied"),
    ev.StoreSetUp(
        outcome="success",
        call=1,
        api="setup",
        backend="mooncake",
        mode="standalone",
        protocol="tcp",
        code="0",
        cause="",
    ),
    ev.TransportChosen(requested="rdma", actual="tcp"),
    ev.LimitSeen(source="psutil", limit_bytes=1 << 34, free_bytes=1 << 33),
    ev.AllocatorChosen(**TARGET, requested="shm", actual="default", reason="import_failed"),
    replace(BUILT, **TARGET),
    ev.PoolBuilt(  # type: ignore[arg-type]  # one table of fields for two events
        **POOL | {"role": "target", "pool": "swa"},
        outcome="success",
        reason="",
        code="",
        mode="standalone",
        expected=True,
    ),
    ev.PoolReleased(  # type: ignore[arg-type]  # as above
        **POOL | {"role": "target", "pool": "swa", "held_bytes": 0, "held_tokens": 0},
        mode="standalone",
        how="destroyed",
        registered_bytes=0,
    ),
    replace(MISMATCH, **TARGET, harmful=True),
    ev.PagesPinned(
        **TARGET,
        outcome="success",
        call=2,
        allocator="default",
        bytes=1114112,
        code="0",
        pinned_bytes=1114112,
    ),
    replace(REGISTERED, **TARGET, call=3),
    replace(POOL_REGISTERED, **TARGET),
    BUILT,
    replace(REFUSED, call=4),
    READY,
    ev.ObsError(where="sink", count=1),
    ev.JournalLost(lost=2, reason="disk full"),
    replace(ENTERED, call=9, since=60.0),
)
"""A rank that lives, with a row of everything; a pool that was released is 0 in the live path."""
LIVE_PORT, DEAD_PORT = "30000", "30001"
INFO = "hicache_worker_info"
EXPORTER, SGLANG = "10.0.0.1:9748", f"10.0.0.1:{LIVE_PORT}"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def exported(folder: Path, keeper: Keeper, ports: Mapping[str, tuple[Event, ...]]) -> Series:
    """What the exporter serves of two ranks a server, each of which saw the events of its port."""
    numbers = iter(range(100, 200))
    for port, events in ports.items():
        for tp in ("0", "1"):
            at = next(numbers)
            name = f"{runs.boot_id()}-{at * 10**9}-{at}-{at:08x}"
            started = ev.RunStarted(
                run=name,
                boot_id=runs.boot_id(),
                pid=at,
                host="node-1",
                namespace="llm",
                pod=f"pod-{port}",
                obs_version="0.1.0",
                python_version="3.11",
                launch=port,
                boottime_ns=at * 10**9,
            )
            worker = replace(WORKER, server_port=port, tp_rank=tp)
            run = Worker(folder, name, keeper, started, worker).begin().write(*events)
            if port == DEAD_PORT:
                run.die()
    host = Host((folder,))
    host.refresh()
    found = {
        (name, tuple(sorted(labels))): value
        for name, rows in served(host).items()
        for labels, value in rows.items()
    }
    host.close()
    return found


def live(*more: Event, pod: str = f"pod-{LIVE_PORT}") -> Series:
    """What SGLang's own /metrics says of the server that lives: a row that ended is 0."""
    found: Series = {}
    place = {"namespace": "llm", "pod": pod}
    for tp in ("0", "1"):
        worker = replace(WORKER, server_port=LIVE_PORT, tp_rank=tp)
        started = ev.RunStarted(
            run="", boot_id="", pid=1, host="node-1", obs_version="0.1.0", python_version="3.11"
        )
        of_rank = {name: getattr(worker, name) for name in WORKER_LABELS} | place
        for event in (started, worker, *LIVES, *more):
            for metric, values, value in updates(event, 1000.0):
                labels = {**of_rank, **dict(zip(metric.labels, values, strict=True))}
                key = (metric.name, tuple(sorted(labels.items())))
                before = found.get(key, 0.0) if metric.name.endswith("_total") else 0.0
                found[key] = before + value
    return found


def scraped(cluster: str, instance: str, series: Series) -> Iterator[dict[str, str]]:
    """*series* as promtool takes them; counters grow by what they are at each minute."""
    for (name, labels), value in series.items():
        named = {**dict(labels), "cluster": cluster, "instance": instance, "job": instance}
        text = ", ".join(f"{key}={json.dumps(one)}" for key, one in named.items() if one)
        growth = value if name.endswith("_total") else 0
        yield {"series": f"{name}{{{text}}}", "values": f"{value:.3f}+{growth:.3f}x20"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The series of all clusters."""
    keeper = Keeper()
    folder = tmp_path_factory.mktemp("journals")
    (folder / "alone").mkdir()
    (folder / "all").mkdir()
    alone = exported(folder / "alone", keeper, {LIVE_PORT: LIVES})
    every = exported(folder / "all", keeper, {LIVE_PORT: LIVES, DEAD_PORT: THE_BUG})
    keeper.end()
    return [
        *scraped("exporter", EXPORTER, every),
        *scraped("both", EXPORTER, every),
        *scraped("both", SGLANG, live()),
        *scraped("alone", EXPORTER, alone),
        *scraped("live", SGLANG, live()),
        *scraped("partly", EXPORTER, alone),
        *scraped("partly", SGLANG, live()),
        *scraped("partly", f"10.0.0.2:{LIVE_PORT}", live(pod="pod-on-another-node")),
        *scraped("nameless", EXPORTER, {k: v for k, v in every.items() if k[0] != INFO}),
        *scraped("untold", EXPORTER, alone),
        *scraped("untold", SGLANG, live(ev.ObsError(where="journal", count=1))),
        *scraped("without pods", EXPORTER, alone),
        *scraped("without pods", SGLANG, live(pod="")),
    ]
