"""What stands after a run's death: each cell of the design's table, and who supersedes whom."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    Worker,
    served,
    starts,
    values,
)

from hicache_obs import events as ev
from hicache_obs import metrics as m
from hicache_obs.exporter.host import Host

HOUR = 3600.0
FAILURE = "hicache_failure_active"
FULL_START = (
    ev.PoolBuilt(**POOL, outcome="success", reason="", code="", mode="standalone", expected=True),  # type: ignore[arg-type]
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
    ev.PagesPinned(
        outcome="success",
        call=2,
        role="draft",
        pool="draft",
        allocator="mooncake",
        bytes=1,
        code="0",
        pinned_bytes=1,
    ),
    replace(REFUSED, call=3),
    MISMATCH,
    replace(REGISTERED, call=4),
    POOL_REGISTERED,
    ev.LimitSeen(source="psutil", limit_bytes=2, free_bytes=1),
    ev.TransportChosen(requested="rdma", actual="tcp"),
    replace(ENTERED, call=9),
)
GONE = (
    "hicache_host_pool_bytes",
    "hicache_host_pool_tokens",
    "hicache_pinned_bytes",
    "hicache_registered_bytes",
    "hicache_call_in_progress_since_timestamp_seconds",
    "hicache_pool_registered",
    "hicache_transport_info",
)
KEPT = (
    "hicache_failure_active",
    "hicache_allocator_mismatch",
    "hicache_host_pool_info",
    "hicache_store_info",
    "hicache_pool_expected",
    "hicache_worker_info",
    "hicache_host_limit_bytes",
    "hicache_host_memory_bytes",
    "hicache_registration_last_failure_timestamp_seconds",
    "hicache_registration_last_failure_bytes",
)
COUNTED = (
    "hicache_host_pool_allocations_total",
    "hicache_registrations_total",
    "hicache_store_setups_total",
    "hicache_pins_total",
)


@pytest.mark.parametrize("name", GONE)
def test_what_the_process_held_is_gone_with_it(
    name: str, worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker().write(*FULL_START)
    one = host()
    assert values(one, name)
    run.die()
    one.refresh()
    assert not values(one, name)


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("end", ["stays", "superseded", "retention", "forgotten"])
def test_what_tells_why_is_kept_until_it_no_longer_matters(
    name: str,
    end: str,
    worker: Callable[..., Worker],
    host: Callable[..., Host],
    tmp_path: Path,
) -> None:
    run = worker().write(*FULL_START)
    now = [run.path.stat().st_mtime]
    one = host(clock=lambda: now[0])
    run.die()
    one.refresh()
    kept = served(one)[name]
    assert kept
    if end == "superseded":
        worker(tp="7").write(READY)
    elif end == "retention":
        now[0] += 24 * HOUR + 1
    elif end == "forgotten":
        from hicache_obs.exporter import forgotten

        forgotten.ask(tmp_path, "node", "30000")
        now[0] += 11
        one.refresh()
    else:
        now[0] += 23 * HOUR
    one.refresh()
    left = {labels: value for labels, value in served(one).get(name, {}).items() if labels in kept}
    assert left == (kept if end == "stays" else {})


@pytest.mark.parametrize("name", COUNTED)
def test_counters_stay(name: str, worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    run = worker().write(*FULL_START)
    now = [run.path.stat().st_mtime]
    one = host(clock=lambda: now[0])
    before = served(one)[name]
    assert before
    run.die()
    one.refresh()
    assert served(one)[name] == before
    now[0] += 25 * HOUR
    one.refresh()
    assert served(one)[name] == before


def test_a_worker_is_up_by_its_lock(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker()
    one = host()
    assert values(one, "hicache_worker_up") == [1]
    run.die()
    one.refresh()
    assert values(one, "hicache_worker_up") == [0]


def test_a_failure_stays_while_the_next_start_is_under_way(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(*THE_BUG).die()
    one = host()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]
    again = worker()
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]
    assert values(one, "hicache_allocator_mismatch") == [1]
    again.write(BUILT)
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]
    again.write(READY)
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == []
    assert values(one, "hicache_allocator_mismatch") == []


def test_a_start_that_was_only_stopped_mends_nothing(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(*THE_BUG).die()
    worker().die()
    one = host()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]


def test_the_newest_failure_takes_the_place_of_an_older_one(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(*THE_BUG).die()
    other = replace(REFUSED, cause="client_unreachable", allocator="mooncake")
    worker().write(BUILT, ENTERED, other).die()
    one = host()
    assert values(one, FAILURE, code="-1", cause="client_unreachable") == [1]
    assert values(one, FAILURE, cause="foreign_buffer") == []


def test_fixed_by_switching_eagle_off(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(*THE_BUG).die()
    target = replace(BUILT, role="target", pool="kv", allocator="mooncake")
    worker().write(target, READY)
    one = host()
    assert [value for value in values(one, FAILURE) if value] == []
    assert values(one, "hicache_host_pool_info", role="draft") == []
    assert values(one, "hicache_host_pool_info", role="target") == [1]


def test_tp8_to_tp4(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    for rank in range(8):
        worker(tp=str(rank), launch="old").write(*THE_BUG).die()
    one = host()
    assert values(one, FAILURE, cause="foreign_buffer") == [1] * 8
    for rank in range(4):
        worker(tp=str(rank), launch="new").write(BUILT, READY)
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == []
    assert {dict(k)["tp_rank"] for k in served(one)["hicache_worker_info"]} == set("0123")


def test_a_rank_that_is_ready_supersedes_no_rank_of_its_own_start(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(tp="0", launch="one").write(*THE_BUG).die()
    worker(tp="1", launch="one").write(READY)
    one = host()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]


def test_two_servers_on_one_host(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    worker(port="30000").write(*THE_BUG).die()
    worker(port="30001").write(READY)
    one = host()
    assert values(one, FAILURE, server_port="30000", cause="foreign_buffer") == [1]
    assert values(one, "hicache_worker_up", server_port="30001") == [1]


def test_the_same_port_on_two_hosts(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(host="a").write(*THE_BUG).die()
    worker(host="b").write(READY)
    assert values(host(), FAILURE, host="a", cause="foreign_buffer") == [1]


def test_an_engine_without_a_port_stands_for_itself(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(port="").write(*THE_BUG).die()
    worker(port="").write(READY)
    assert values(host(), FAILURE, cause="foreign_buffer") == [1]


@pytest.mark.parametrize("shift", [-2 * HOUR, 2 * HOUR], ids=["back", "ahead"])
def test_a_clock_that_jumps_decides_nothing(
    shift: float, worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(at=1000).write(*THE_BUG).die()
    worker(at=1060, wall=1_700_001_060 + shift).write(READY)
    assert values(host(), FAILURE, cause="foreign_buffer") == []


@pytest.mark.parametrize("shift", [-2 * HOUR, 2 * HOUR], ids=["back", "ahead"])
def test_a_good_start_before_a_jump_hides_no_failure_after_it(
    shift: float, worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(at=1000).write(READY).die()
    worker(at=1060, wall=1_700_001_060 + shift).write(*THE_BUG).die()
    assert values(host(), FAILURE, cause="foreign_buffer") == [1]


def test_a_run_of_this_boot_is_newer_than_any_of_an_earlier_one(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(boot="0" * 32, at=90_000, wall=1_900_000_000).write(*THE_BUG).die()
    worker(at=5).write(READY)
    assert values(host(), FAILURE, cause="foreign_buffer") == []


def test_the_live_state_of_another_boot_is_ignored(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    """Its lock seems held: a directory that was restored or is shared between machines."""
    worker(boot="0" * 32).write(*FULL_START)
    one = host()
    assert values(one, "hicache_worker_up") == [0]
    assert values(one, "hicache_host_pool_bytes") == []


def test_a_stop_by_sigterm_is_no_failure(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(BUILT, replace(REGISTERED, call=7), READY).die()
    worker(port="1").write(BUILT).die()
    one = host()
    assert [value for value in values(one, FAILURE) if value] == []
    assert starts(one, outcome="failure") == []
    assert starts(one, outcome="success") == [1]
    assert starts(one, outcome="unfinished") == [1]


def test_a_living_process_is_shown_though_a_newer_start_replaced_it(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(tp="0").write(*FULL_START)
    worker(tp="1").write(READY)
    assert values(host(), "hicache_host_pool_bytes", tp_rank="0") == [POOL["held_bytes"]]


def test_every_metric_of_a_worker_either_goes_or_stays() -> None:
    named = {*GONE, *KEPT, "hicache_worker_up"}
    gauges = {metric.name for metric in m.METRICS if metric.type == m.GAUGE}
    assert {metric.name for metric in m.KEPT} == {*KEPT, "hicache_worker_up"}
    assert named <= gauges


@pytest.mark.parametrize(("after_s", "pages"), [(14 * 60, True), (15 * 60, False)])
def test_alerts_on_a_pod_that_nothing_starts_again_end(
    after_s: float, pages: bool, worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker(host="sglang-7c9f", namespace="llm", pod="sglang-7c9f").write(*THE_BUG)
    now = [run.path.stat().st_mtime]
    one = host(clock=lambda: now[0])
    run.die()
    now[0] += after_s
    one.refresh()
    paged = [1] if pages else []
    assert values(one, FAILURE, cause="foreign_buffer") == paged
    assert values(one, "hicache_allocator_mismatch") == paged
    # What happened is still told to people, and what it was stays in tables.
    assert values(one, "hicache_host_pool_info", role="draft") == [1]
    [server] = one.view.snapshot.servers
    assert [failure.cause for failure in server.ranks[0].failures] == ["foreign_buffer"]


def test_a_pod_that_is_being_started_again_is_not_gone(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    """Its weights may load for longer than a pod would be waited for."""
    run = worker(host="sglang-0", pod="sglang-0").write(*THE_BUG)
    now = [run.path.stat().st_mtime]
    run.die()
    again = worker(host="sglang-0", pod="sglang-0")
    one = host(clock=lambda: now[0])
    now[0] += HOUR
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]
    # The time begins with the newest death.
    again.die()
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]


def test_a_page_that_ended_does_not_come_back_with_the_next_start(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    """A StatefulSet that was scaled to 0 and is scaled to 1 with the fix."""
    began = time.time()
    place = {"host": "sglang-0", "pod": "sglang-0"}
    worker(**place, wall=began).write(*THE_BUG).die()
    again = worker(**place, wall=began + HOUR)
    one = host(clock=lambda: began + HOUR + 1)
    assert values(one, FAILURE, cause="foreign_buffer") == []
    assert values(one, "hicache_allocator_mismatch") == []
    again.write(*THE_BUG)
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]


def test_when_a_pod_died_outlives_the_exporter(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    """Its journal was silent for hours before, as in a call that hangs until it is killed."""
    run = worker(pod="sglang-0").write(*THE_BUG)
    now = [time.time() + 2 * HOUR]
    one = host(clock=lambda: now[0])
    run.die()
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]
    one.close()
    now[0] += 60
    again = host(clock=lambda: now[0])
    assert values(again, FAILURE, cause="foreign_buffer") == [1]
    now[0] += 15 * 60
    again.refresh()
    assert values(again, FAILURE, cause="foreign_buffer") == []


def test_a_launch_with_a_rank_that_lives_is_not_gone(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    place = {"host": "sglang-0", "pod": "sglang-0", "launch": "one"}
    worker(**place, tp="0").write(*THE_BUG).die()
    worker(**place, tp="1")
    one = host(clock=lambda: time.time() + HOUR)
    assert values(one, FAILURE, cause="foreign_buffer") == [1]


def test_how_long_a_pod_is_waited_for_is_a_setting(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker(pod="sglang-0").write(*THE_BUG)
    now = [run.path.stat().st_mtime]
    one = host(clock=lambda: now[0], failed_pod_s=HOUR)
    run.die()
    now[0] += HOUR - 1
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == [1]


def test_pods_of_one_name_in_two_namespaces_are_two_servers(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    place = {"host": "sglang-0", "pod": "sglang-0"}
    worker(**place, namespace="llm").write(*THE_BUG).die()
    worker(**place, namespace="lab").write(READY)
    one = host()
    assert values(one, FAILURE, namespace="llm", cause="foreign_buffer") == [1]
    assert values(one, FAILURE, namespace="lab", cause="foreign_buffer") == []
    names = [(server.namespace, server.host) for server in one.view.snapshot.servers]
    assert names == [("llm", "sglang-0"), ("lab", "sglang-0")]


def test_with_host_network_another_pod_on_the_port_mends_the_failure(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(pod="sglang-old").write(*THE_BUG).die()
    # The worker is told its namespace from this rollout on.
    worker(pod="sglang-new", namespace="llm").write(READY)
    assert values(host(), FAILURE, cause="foreign_buffer") == []


def test_without_host_network_another_pod_on_the_node_and_port_mends_nothing(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    """NODE_NAME makes the node the host; the ports are still each pod's own."""
    worker(pod="sglang-0", own_network=True).write(*THE_BUG).die()
    worker(pod="sglang-1", own_network=True).write(READY)
    one = host()
    assert values(one, FAILURE, host="node", pod="sglang-0", cause="foreign_buffer") == [1]
    assert [(s.host, s.pod) for s in one.view.snapshot.servers] == [
        ("node", "sglang-0"),
        ("node", "sglang-1"),
    ]
    worker(pod="sglang-0", own_network=True).write(READY)
    one.refresh()
    assert values(one, FAILURE, cause="foreign_buffer") == []
