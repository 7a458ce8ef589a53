"""Several engines in one process tree, and a graceful end.

As two ``sgl.Engine(...)`` in one Python process: one parent, each engine's ranks started after the
other's are ready, both with ``ServerArgs.port``'s value. SGLang's own: the start of the ranks,
their labels, the release of host resources. Left out: the tokenizer that an ``Engine`` has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from bench.harness import Mooncake
from conftest import Run, Start, releases
from journals import starts, values
from runs_of import MLA, OFFLOAD, failing, nowhere
from together import Together, after_death, exporter, first, journals, told

from hicache_obs.exporter.host import Host

ENGINES: dict[str, Any] = {"engines": 2, **MLA, "server_port": 30700}
Both = Callable[[str], tuple[Run, Host]]


@pytest.fixture(scope="module")
def both(mooncake: Mooncake, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Two engines, and what an exporter showed while they stood; once a release."""
    kept: dict[str, tuple[Run, Host]] = {}

    def run(release: str) -> tuple[Run, Host]:
        if release not in kept:
            with ExitStack() as stack:
                alone = Together(stack, mooncake, tmp_path_factory.mktemp("engines"), release)
                server = alone.start("both", **ENGINES)
                server.wait_ready(150)
                host = exporter(alone.state("both"))
                kept[release] = alone.end({"both": server})["both"], host
        return kept[release]

    return run


engines = pytest.mark.parametrize(
    "release", releases("0.5.14", "0.5.20", "0.5.23", sample=("0.5.23",))
)


@engines
def test_two_engines_in_one_process_have_a_run_each(both: Both, release: str) -> None:
    run, _ = both(release)

    of_each = journals(run)
    assert len(of_each) == 2
    one, other = (first(events, "run") for events in of_each)
    assert one["run"] != other["run"]
    assert one["launch"] == other["launch"] != ""
    for events in of_each:
        assert told(events, "worker_ready")
        assert [event["server_port"] for event in told(events, "worker_starting")] == ["30700"]
        assert sorted(event["role"] for event in told(events, "pool")) == ["draft", "target"]
        assert len(told(events, "registration", outcome="success")) == 2
        assert told(events, "registration", outcome="failure") == []
    assert {report["pid"] for report in run.reports} == {one["pid"], other["pid"]}


@engines
def test_an_exporter_shows_each_engine(both: Both, release: str) -> None:
    run, host = both(release)

    (server,) = host.view.snapshot.servers
    pids = sorted(report["pid"] for report in run.reports)
    assert sorted(rank.pid for rank in server.ranks) == pids
    for rank in server.ranks:
        assert rank.state == "up"
        assert sorted(pool.role for pool in rank.pools) == ["draft", "target"]
    assert sum(values(host, "hicache_registrations_total", outcome="success")) == 4
    assert sum(values(host, "hicache_worker_starts_total", outcome="success")) == 2


@engines
def test_two_engines_hold_the_bytes_of_both(both: Both, release: str) -> None:
    """Their labels are the same, so one row stands for both."""
    run, host = both(release)

    for role in ("target", "draft"):
        pools = [pool for r in run.reports for pool in r["pools"] if pool["role"] == role]
        assert len(pools) == 2
        held = sum(pool["bytes"] for pool in pools)
        assert values(host, "hicache_host_pool_bytes", role=role) == [held]
        assert values(host, "hicache_registered_bytes", role=role) == [held]
        assert values(host, "hicache_pinned_bytes", role=role) == [held]
        tokens = sum(pool["tokens"] for pool in pools)
        assert values(host, "hicache_host_pool_tokens", role=role) == [tokens]


@pytest.mark.parametrize("release", releases("0.5.14", "0.5.20", "0.5.23", sample=("0.5.14",)))
def test_the_second_engines_failure_is_its_own(start: Start, release: str) -> None:
    """The second engine's standalone client is not there. SGLang's own: the SIGQUIT by which one
    engine's rank kills the whole process tree."""
    run = start(release, second_config=nowhere(), **ENGINES)

    assert not run.ready
    good, failed = sorted(journals(run), key=lambda events: bool(told(events, "worker_failed")))
    assert told(good, "worker_ready")
    assert told(good, "setup", outcome="failure") == []
    assert [event["cause"] for event in told(failed, "worker_failed")] == ["client_unreachable"]
    host = after_death(run.state_dir)
    assert [failure["cause"] for failure in failing(host)] == ["client_unreachable"]
    assert starts(host, outcome="failure") == [1]
    assert starts(host, outcome="success") == [1]


DESTROYED = {
    "0.5.13": set(),
    "0.5.14": set(),
    "0.5.15.post1": set(),
    "0.5.16": {"target"},
    "0.5.18": {"target"},
    "0.5.20": {"target", "draft"},
    "0.5.23": {"target", "draft"},
}


@pytest.mark.parametrize("release", releases(*DESTROYED, sample=("0.5.23",)))
def test_what_a_graceful_end_destroys(start: Start, release: str) -> None:
    """SGLang's own: ``Scheduler.release_host_resources`` and ``HostKVCache.destroy``; what asks
    for the end (a ShutdownReq) is the bench."""
    run = start(release, **MLA, graceful_exit=True)

    assert run.ready, run.log[-2000:]
    assert run.returncode == 0
    destroyed = run.of("pool_released", how="destroy")
    assert {event["role"] for event in destroyed} == DESTROYED[release]
    assert all(event["held_bytes"] == event["registered_bytes"] == 0 for event in destroyed)


@pytest.mark.parametrize(
    ("release", "destroyed"),
    [
        pytest.param(*release.values, release.values[0] >= "0.5.18", marks=release.marks)
        for release in releases("0.5.14", "0.5.16", "0.5.18", "0.5.23", sample=("0.5.23",))
    ],
)
def test_a_graceful_end_and_the_offload_managers_pool(
    start: Start, release: str, destroyed: bool
) -> None:
    """SGLang's own: ``release_host_resources`` asks the manager for it from 0.5.18 on."""
    run = start(release, embedded=True, graceful_exit=True, **OFFLOAD)

    assert run.ready, run.log[-2000:]
    assert len(run.of("pool_released", how="destroy")) == destroyed
