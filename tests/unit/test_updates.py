"""Every event says what it changes in the metric table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields

import pytest

from hicache_obs import events as ev
from hicache_obs import metrics as m
from hicache_obs import updates as module
from hicache_obs.events import KINDS, Event
from hicache_obs.ledger import FailureRow, Ledger
from hicache_obs.metrics import COUNTER, Metric, Update
from hicache_obs.updates import updates

CLASSES = sorted(KINDS.values(), key=lambda cls: cls.kind)
by_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.kind)
Example = Callable[..., Event]
Rows = dict[tuple[str, ...], float]


def variants(example: Example, cls: type[Event]) -> list[Event]:
    """A success, a failure, and each answer to *expected*."""
    names = {field.name for field in fields(cls)}
    found = [example(cls)]
    if "outcome" in names:
        found.append(example(cls, outcome="failure", error_type="RuntimeError", error="boom"))
    if "expected" in names and cls is ev.PoolBuilt:
        found += [example(cls, expected=None), example(cls, expected=False)]
    if "mode" in names:
        found.append(example(cls, mode=""))
    if "reason" in names:
        found.append(example(cls, reason=""))
    return found


def fold(changes: list[Update]) -> dict[str, Rows]:
    """The table after *changes*: value by labels, by metric name."""
    table: dict[str, Rows] = {}
    for metric, labels, value in changes:
        rows = table.setdefault(metric.name, {})
        rows[labels] = rows.get(labels, 0.0) + value if metric.type == COUNTER else value
    return table


def after(*seen: Event) -> dict[str, Rows]:
    return fold([change for event in seen for change in updates(event, 100.0)])


def rows(table: dict[str, Rows], metric: Metric) -> Rows:
    return table.get(metric.name, {})


def only(table: dict[str, Rows], metric: Metric) -> tuple[dict[str, str], float]:
    ((labels, value),) = rows(table, metric).items()
    return dict(zip(metric.labels, labels, strict=True)), value


def test_every_kind_has_a_function() -> None:
    assert set(module._UPDATES) == set(KINDS)


@by_class
def test_labels_and_values_fit_the_table(example: Example, cls: type[Event]) -> None:
    for event in variants(example, cls):
        for metric, labels, value in updates(event, 100.0):
            assert metric in m.METRICS
            assert len(labels) == len(metric.labels)
            assert all(isinstance(label, str) for label in labels)
            assert isinstance(value, float)
            assert math.isfinite(value)
            assert value >= 0


@by_class
def test_every_event_tells_its_time(example: Example, cls: type[Event]) -> None:
    table = after(example(cls))
    if cls is ev.CallEntered:  # it has a time of its own
        assert rows(table, m.OBS_LAST_EVENT) == {}
        assert only(table, m.CALL_IN_PROGRESS)[1] > 0
    else:
        assert only(table, m.OBS_LAST_EVENT) == ({}, 100.0)


@by_class
def test_no_address_and_no_error_text_becomes_a_label(example: Example, cls: type[Event]) -> None:
    told = {"address": "0x7f00dead", "error": "at 10.0.0.1 /models/x", "error_type": "Odd"}
    names = {field.name for field in fields(cls)}
    given = {name: text for name, text in told.items() if name in names}
    if "outcome" in names:
        given["outcome"] = "failure"
    labels = {label for change in updates(example(cls, **given), 1.0) for label in change.labels}
    assert not labels & set(told.values())


def test_every_metric_is_fed(example: Example) -> None:
    fed = {
        change.metric.name
        for cls in CLASSES
        for event in variants(example, cls)
        for change in updates(event, 1.0)
    }
    assert {metric.name for metric in m.METRICS} - fed == set()


def test_an_event_of_a_newer_kind_tells_its_time_only() -> None:
    class Newer(Event):
        kind = "newer"

    assert updates(Newer(), 5.0) == [Update(m.OBS_LAST_EVENT, (), 5.0)]


# Registration


def registration(example: Example, **given: object) -> Event:
    facts: dict[str, object] = {
        "api": "register_buffer",
        "mode": "standalone",
        "role": "draft",
        "pool": "draft",
        "allocator": "default",
        "bytes": 3 << 30,
        "code": "0",
        "cause": "",
        "mended": (),
    }
    return example(ev.BufferRegistered, **facts | given)


def failed_registration(example: Example) -> Event:
    return registration(
        example, outcome="failure", code="-1", cause="foreign_buffer", registered_bytes=0
    )


def test_a_failed_registration(example: Example) -> None:
    table = after(failed_registration(example))
    labels, value = only(table, m.FAILURE_ACTIVE)
    assert value == 1
    assert labels == {
        "stage": "registration",
        "mode": "standalone",
        "role": "draft",
        "pool": "draft",
        "allocator": "default",
        "code": "-1",
        "cause": "foreign_buffer",
    }
    assert only(table, m.LAST_FAILURE_TIME)[1] == 100.0
    assert only(table, m.LAST_FAILURE_BYTES)[1] == 3 << 30
    labels, value = only(table, m.REGISTRATIONS)
    assert (labels["outcome"], labels["size_class"], value) == ("failure", "4GiB", 1)
    assert only(table, m.REGISTERED_BYTES)[1] == 0


def test_a_registration_that_succeeds(example: Example) -> None:
    table = after(registration(example, registered_bytes=3 << 30, duration_s=13.0))
    assert rows(table, m.FAILURE_ACTIVE) == {}
    assert rows(table, m.LAST_FAILURE_TIME) == {}
    assert only(table, m.REGISTERED_BYTES)[1] == 3 << 30
    assert only(table, m.REGISTRATION_DURATION)[1] == 13.0


def test_a_success_mends_the_rows_of_the_failure(example: Example) -> None:
    ledger = Ledger()
    for code, cause in (("-1", "foreign_buffer"), ("", "exception")):
        row = FailureRow("standalone", "default", code, cause)
        ledger.add_failure("registration", "draft", "draft", row)
    other = registration(example, outcome="failure", code="", cause="exception")
    mended = ledger.mend("registration", "draft", "draft")
    table = after(failed_registration(example), other, registration(example, mended=mended))
    assert list(rows(table, m.FAILURE_ACTIVE).values()) == [0, 0]


def test_a_success_of_another_pool_mends_nothing(example: Example) -> None:
    table = after(failed_registration(example), registration(example, role="target", pool="kv"))
    assert only(table, m.FAILURE_ACTIVE)[1] == 1


def test_registrations_add_up(example: Example) -> None:
    table = after(*[failed_registration(example)] * 3)
    assert only(table, m.REGISTRATIONS)[1] == 3


def test_pool_registered(example: Example) -> None:
    good = example(ev.PoolRegistered, role="draft", pool="draft")
    bad = example(ev.PoolRegistered, role="draft", pool="draft", outcome="failure")
    assert only(after(good), m.POOL_REGISTERED) == ({"role": "draft", "pool": "draft"}, 1)
    assert only(after(good, bad), m.POOL_REGISTERED)[1] == 0
    assert only(after(bad), m.POOL_EXPECTED)[1] == 1


# Pools


def test_a_pool_that_stands(example: Example) -> None:
    event = example(
        ev.PoolBuilt, role="draft", pool="draft", held_bytes=9, held_tokens=3, bytes=7, mended=()
    )
    table = after(event)
    assert only(table, m.POOL_BYTES)[1] == 9
    assert only(table, m.POOL_TOKENS)[1] == 3
    labels, value = only(table, m.POOL_INFO)
    assert (labels["bytes"], labels["page_size"], value) == ("7", "4096", 1)
    assert only(table, m.POOL_EXPECTED)[1] == 1
    assert only(table, m.POOL_REGISTERED)[1] == 0
    labels, value = only(table, m.FAILURE_ACTIVE)
    assert (labels["stage"], labels["code"], labels["cause"], value) == ("registration", "", "", 0)


def test_a_pool_that_could_not_be_had(example: Example) -> None:
    table = after(example(ev.PoolBuilt, outcome="failure", reason="budget", expected=None))
    labels, value = only(table, m.FAILURE_ACTIVE)
    assert (labels["stage"], labels["cause"], value) == ("allocation", "budget", 1)
    labels, _ = only(table, m.ALLOCATIONS)
    assert (labels["outcome"], labels["reason"]) == ("failure", "budget")
    for metric in (m.POOL_INFO, m.POOL_BYTES, m.POOL_EXPECTED):
        assert rows(table, metric) == {}


@pytest.mark.parametrize(("expected", "value"), [(None, []), (False, [0])])
def test_a_pool_that_need_not_be_registered(
    example: Example, expected: bool | None, value: list[float]
) -> None:
    table = after(example(ev.PoolBuilt, expected=expected))
    assert list(rows(table, m.POOL_EXPECTED).values()) == value
    assert rows(table, m.POOL_REGISTERED) == {}


def test_releasing_a_pool_ends_its_rows(example: Example) -> None:
    built = example(ev.PoolBuilt)
    released = example(ev.PoolReleased, held_bytes=0, held_tokens=0, registered_bytes=0)
    table = after(built, example(ev.PoolRegistered), registration(example), released)
    for metric in (m.POOL_INFO, m.POOL_BYTES, m.POOL_TOKENS, m.POOL_EXPECTED, m.POOL_REGISTERED):
        assert only(table, metric)[1] == 0


# Calls


@pytest.mark.parametrize(
    ("cls", "api"),
    [
        (ev.SegmentAllocated, "allocate"),
        (ev.PagesPinned, "pin"),
        (ev.CallReturned, "warmup"),
        (ev.CallReturned, "initialize"),
        (ev.BufferRegistered, "register_buffer"),
    ],
)
def test_a_call_is_in_progress_until_it_ends(example: Example, cls: type[Event], api: str) -> None:
    place = {"role": "draft", "pool": "draft"}
    entered = example(ev.CallEntered, api=api, since=42.0, **place)
    given = {"api": api} if "api" in {field.name for field in fields(cls)} else {}
    assert only(after(entered), m.CALL_IN_PROGRESS) == ({"api": api, **place}, 42.0)
    assert only(after(entered, example(cls, **place, **given)), m.CALL_IN_PROGRESS)[1] == 0


def test_a_set_up_ends_its_call(example: Example) -> None:
    entered = example(ev.CallEntered, api="setup", role="none", pool="")
    table = after(entered, example(ev.StoreSetUp, api="setup"))
    assert only(table, m.CALL_IN_PROGRESS)[1] == 0


# The store, pins, allocators


def test_a_set_up_that_fails_and_then_succeeds(example: Example) -> None:
    facts = {"backend": "mooncake", "mode": "standalone", "protocol": ""}
    failed = example(
        ev.StoreSetUp, outcome="failure", code="-1", cause="client_unreachable", mended=(), **facts
    )
    mended = (("standalone", "", "-1", "client_unreachable"),)
    good = example(ev.StoreSetUp, code="0", cause="", mended=mended, **facts)
    table = after(failed)
    assert sorted(rows(table, m.FAILURE_ACTIVE).values()) == [0, 1]
    assert only(table, m.STORE_INFO)[1] == 0
    table = after(failed, good)
    assert set(rows(table, m.FAILURE_ACTIVE).values()) == {0}
    assert only(table, m.STORE_INFO) == (facts, 1)
    assert sorted(rows(table, m.STORE_SETUPS)) == [
        ("standalone", "failure", "-1", "client_unreachable"),
        ("standalone", "success", "0", ""),
    ]


def test_a_pool_that_could_not_be_pinned(example: Example) -> None:
    table = after(example(ev.PoolBuilt, outcome="failure", reason="pin", code="1"))
    labels, value = only(table, m.FAILURE_ACTIVE)
    assert (labels["stage"], labels["code"], labels["cause"], value) == ("pinning", "1", "pin", 1)


def test_a_failed_pin(example: Example) -> None:
    table = after(example(ev.PagesPinned, outcome="failure", code="1", pinned_bytes=0))
    labels, value = only(table, m.PINS)
    assert (labels["outcome"], labels["code"], value) == ("failure", "1", 1)
    assert only(table, m.PINNED_BYTES)[1] == 0


def test_a_pin(example: Example) -> None:
    table = after(example(ev.PagesPinned, code="0", pinned_bytes=77))
    labels, value = only(table, m.PINS)
    assert (labels["outcome"], labels["code"], value) == ("success", "0", 1)
    assert only(table, m.PINNED_BYTES)[1] == 77


def test_limits_stand_side_by_side_and_the_newest_holds(example: Example) -> None:
    host = example(ev.LimitSeen, source="psutil", limit_bytes=64, free_bytes=40)
    group = example(ev.LimitSeen, source="cgroup", limit_bytes=32, free_bytes=8)
    later = example(ev.LimitSeen, source="cgroup", limit_bytes=32, free_bytes=0)
    table = after(host, group, later)
    assert rows(table, m.HOST_LIMIT) == {("psutil",): 64, ("cgroup",): 32}
    assert rows(table, m.HOST_MEMORY) == {("psutil",): 40, ("cgroup",): 0}


def test_the_transport_that_was_asked_for_and_the_one_in_use(example: Example) -> None:
    asked = {"requested": "rdma", "actual": "tcp"}
    assert only(after(example(ev.TransportChosen, **asked)), m.TRANSPORT_INFO) == (asked, 1)


def test_only_a_fallback_counts_as_one(example: Example) -> None:
    asked = {"requested": "mooncake", "actual": "default"}
    fell = example(ev.AllocatorChosen, reason="import_error", **asked)
    assert only(after(fell), m.FALLBACKS) == ({**asked, "reason": "import_error"}, 1)
    assert rows(after(example(ev.AllocatorChosen, reason="")), m.FALLBACKS) == {}


@pytest.mark.parametrize("harmful", [True, False])
def test_a_mismatch_and_its_end(example: Example, harmful: bool) -> None:
    seen = example(ev.MismatchSeen, harmful=harmful)
    labels, value = only(after(seen), m.MISMATCH)
    assert (labels["harmful"], value) == (str(harmful).lower(), 1)
    gone = example(ev.MismatchSeen, harmful=harmful, active=False)
    assert only(after(seen, gone), m.MISMATCH)[1] == 0


# The worker and ourselves


def test_the_end_of_a_start(example: Example) -> None:
    failed = example(
        ev.WorkerFailed, outcome="failure", stage="registration", cause="foreign_buffer"
    )
    assert rows(after(failed), m.WORKER_STARTS) == {
        ("failure", "registration", "foreign_buffer"): 1
    }
    assert rows(after(example(ev.WorkerReady)), m.WORKER_STARTS) == {("success", "", ""): 1}


def test_a_run_is_up(example: Example) -> None:
    table = after(example(ev.RunStarted, obs_version="1.2", python_version="3.11"))
    assert only(table, m.WORKER_UP)[1] == 1
    assert only(table, m.OBS_BUILD) == ({"version": "1.2", "python_version": "3.11"}, 1)


def test_the_draft_builders_earlier_state_ends(example: Example) -> None:
    first = example(ev.DraftBuilderReported, state="pending", before="")
    then = example(ev.DraftBuilderReported, state="applied", before="pending")
    assert rows(after(first, then), m.DRAFT_BUILDER) == {("pending",): 0, ("applied",): 1}


def test_hooks(example: Example) -> None:
    table = after(example(ev.HooksReported, installed=12, pending=3, missing=("a.b", "c.d")))
    assert rows(table, m.OBS_HOOKS) == {("installed",): 12, ("pending",): 3, ("missing",): 2}
    assert rows(table, m.OBS_HOOK_MISSING) == {("a.b",): 1, ("c.d",): 1}


def test_losses_and_faults_add_up(example: Example) -> None:
    lost = example(ev.JournalLost, lost=3)
    assert only(after(lost, lost), m.OBS_JOURNAL_LOST)[1] == 6
    fault = example(ev.ObsError, where="live", count=2)
    assert only(after(fault, fault), m.OBS_ERRORS) == ({"where": "live"}, 4)
