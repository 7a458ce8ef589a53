"""What a death means that did not say so itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from journals import BUILT, ENTERED, READY, REGISTERED, THE_BUG, Worker, starts, values

from hicache_obs.events import CallRefused, SegmentAllocated
from hicache_obs.exporter.host import Host

GIB = 1 << 30
FAILURE = "hicache_failure_active"
ASKING = CallRefused(
    outcome="failure",
    call=7,
    api="register_buffer",
    mode="standalone",
    role="draft",
    pool="draft",
    allocator="mooncake",
    bytes=1,
    code="-1",
    cause="ipc_or_remote_map",
)
ALLOCATE = replace(
    ENTERED,
    api="allocate",
    allocator="mooncake",
    mode="",
    bytes=6 * GIB,
    limit_bytes=8 * GIB,
    used_bytes=4 * GIB,
    limit_source="cgroup",
)


def test_a_call_that_never_came_back(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker().write(BUILT, replace(ENTERED, mode="standalone", allocator="mooncake"))
    one = host()
    since = "hicache_call_in_progress_since_timestamp_seconds"
    assert values(one, since, api="register_buffer", role="draft", pool="draft") == [999.0]
    assert values(one, FAILURE, cause="crashed_in_call") == []
    run.die()
    one.refresh()
    labels = {"stage": "registration", "mode": "standalone", "role": "draft", "code": ""}
    assert values(one, FAILURE, allocator="mooncake", cause="crashed_in_call", **labels) == [1]
    crash = {"outcome": "failure", "stage": "registration", "cause": "crashed_in_call"}
    assert starts(one, **crash) == [1]
    assert values(one, since) == []


@pytest.mark.parametrize(
    ("used", "limit", "cause"),
    [
        (4 * GIB, 8 * GIB, "oom_suspected"),
        (2 * GIB + 1, 8 * GIB, "oom_suspected"),
        (2 * GIB, 8 * GIB, "crashed_in_call"),
        (9 * GIB, 0, "crashed_in_call"),
    ],
    ids=["far beyond", "one byte beyond", "just fits", "no limit known"],
)
def test_a_request_beyond_the_limit(
    used: int, limit: int, cause: str, worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(replace(ALLOCATE, used_bytes=used, limit_bytes=limit)).die()
    one = host()
    assert values(one, FAILURE, stage="allocation", cause=cause) == [1]
    assert starts(one, outcome="failure", stage="allocation", cause=cause) == [1]


@pytest.mark.parametrize(
    ("resident", "cause"), [(0, "oom_suspected"), (6, "crashed_in_call")], ids=["none", "all"]
)
def test_page_locking_asks_for_what_is_not_there_yet(
    resident: int, cause: str, worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    """6 GiB of 10 with 5 in use: too much, unless the allocation has brought them in."""
    allocate = replace(ALLOCATE, call=1, limit_bytes=10 * GIB, used_bytes=(5 - resident) * GIB)
    if resident:
        allocate = replace(allocate, used_bytes=0)
    pin = replace(allocate, call=2, api="pin", used_bytes=max(5, resident) * GIB)
    back = SegmentAllocated(
        outcome="success",
        call=1,
        role="draft",
        pool="draft",
        allocator="mooncake",
        bytes=6 * GIB,
        address="0x1",
        reason="",
    )
    worker().write(allocate, back, pin).die()
    assert values(host(), FAILURE, stage="pinning", cause=cause) == [1]


def test_a_refusal_whose_cause_was_still_asked_for(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker().write(BUILT, ENTERED, ASKING)
    one = host()
    assert values(one, "hicache_call_in_progress_since_timestamp_seconds") == [999.0]
    run.die()
    one.refresh()
    told = {"stage": "registration", "code": "-1", "cause": "ipc_or_remote_map"}
    assert values(one, FAILURE, **told) == [1]
    start = {"stage": "registration", "outcome": "failure", "cause": "ipc_or_remote_map"}
    assert starts(one, **start) == [1]


def test_a_refusal_that_was_answered_is_no_cause_of_death(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(BUILT, ENTERED, ASKING, replace(REGISTERED, call=7)).die()
    assert starts(host(), outcome="unfinished") == [1]


def test_ranks_that_die_because_another_failed(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    runs = [worker(tp=str(rank), launch="one").write(BUILT) for rank in range(4)]
    runs[0].write(ENTERED)
    runs[2].write(*THE_BUG[1:])
    one = host()
    for run in runs:
        run.die()
    one.refresh()
    assert starts(one, cause="peer", outcome="failure", stage="registration") == [1, 1, 1]
    assert [v for v in values(one, FAILURE) if v] == values(one, FAILURE, cause="foreign_buffer")


def test_a_rank_that_failed_too_and_was_killed_before_it_could_say_so(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    first = worker(tp="0", launch="one").write(*THE_BUG)
    second = worker(tp="1", launch="one").write(*THE_BUG[:-1])
    first.die()
    second.die()
    one = host()
    told = {"outcome": "failure", "stage": "registration", "cause": "foreign_buffer"}
    assert starts(one, **told) == [1, 1]
    assert starts(one) == [1, 1]


def test_another_server_is_no_peer(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker(tp="0", launch="one").write(*THE_BUG).die()
    worker(tp="1", launch="two", port="30001").write(BUILT).die()
    assert starts(host(), tp_rank="1") == [1]
    assert starts(host(), cause="peer") == []


def test_what_dies_after_a_crash_is_its_peer(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    """Both are inside a call; the first lock that goes free is the crash."""
    runs = [worker(tp=str(rank), launch="one").write(BUILT, ENTERED) for rank in range(2)]
    one = host()
    runs[1].die()
    one.refresh()
    runs[0].die()
    one.refresh()
    assert starts(one, tp_rank="1", cause="crashed_in_call") == [1]
    assert starts(one, tp_rank="0", cause="peer") == [1]


def test_a_rank_between_calls_is_the_peer_of_one_that_crashed(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    runs = [worker(tp=str(rank), launch="one").write(BUILT) for rank in range(2)]
    runs[0].write(ENTERED)
    for run in runs:
        run.die()
    one = host()
    assert starts(one, tp_rank="0", cause="crashed_in_call") == [1]
    assert starts(one, tp_rank="1", cause="peer") == [1]


def test_a_worker_that_served_and_was_killed_is_no_failed_start(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(BUILT, replace(REGISTERED, call=7), READY).die()
    one = host()
    assert starts(one) == [1]
    assert starts(one, outcome="success") == [1]


def test_a_crash_in_a_call_after_start_up_is_a_failure_and_no_start(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(READY, replace(ENTERED, call=50)).die()
    one = host()
    assert values(one, FAILURE, cause="crashed_in_call") == [1]
    assert starts(one) == [1]


def test_a_verdict_is_given_once(
    worker: Callable[..., Worker], host: Callable[..., Host], tmp_path: Path
) -> None:
    """The exporter that saw who died first wrote it down; the next one keeps to it."""
    runs = [worker(tp=str(rank), launch="one").write(BUILT, ENTERED) for rank in range(2)]
    one = host()
    for run in runs:
        run.die()
        one.refresh()
    before = {cause: starts(one, cause=cause) for cause in ("crashed_in_call", "peer")}
    one.close()
    again = host()
    assert before == {"crashed_in_call": [1], "peer": [1]}
    assert before == {c: starts(again, cause=c) for c in before}
    assert len([v for v in values(again, FAILURE, cause="crashed_in_call") if v]) == 1
