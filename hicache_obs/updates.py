"""The pure function from an event to updates of the metric table.

It needs no state: an event carries its totals. The live applier and the exporter both apply
what it returns, so both tell the same story.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from hicache_obs import events as ev
from hicache_obs import metrics as m
from hicache_obs.classify import allocation_stage
from hicache_obs.metrics import Metric, Update, size_class


def updates(event: ev.Event, time: float) -> list[Update]:
    """What *event*, seen at *time* (seconds since the epoch), changes in the table.

    The entry of a call has a time of its own there.
    """
    found = _UPDATES.get(event.kind)
    changes = found(event, time) if found else []
    if event.kind != ev.CallEntered.kind:
        changes.append(Update(m.OBS_LAST_EVENT, (), time))
    return changes


_SIZE_CLASS = "size_class"
_read_labels = {
    metric: attrgetter(*(name for name in metric.labels if name != _SIZE_CLASS))
    for metric in m.METRICS
    if len(metric.labels) > 1
}
_NUMBERS = (m.POOL_INFO,)
"""Metrics with labels that are numbers in an event."""


def _row(metric: Metric, value: float, source: Any, **more: object) -> Update:
    """An update of *metric*; labels are taken from *more*, else from the event's fields."""
    read = None if more else _read_labels.get(metric)
    if read is not None:
        labels = read(source) if metric not in _NUMBERS else tuple(map(str, read(source)))
    else:
        labels = tuple(
            [str(more[n]) if n in more else str(getattr(source, n)) for n in metric.labels]
        )
    return Update(metric, labels, float(value))


def _sized_row(metric: Metric, source: Any) -> Update:
    """One more of *metric*, whose last label is the size class of the event's bytes."""
    return Update(metric, (*_read_labels[metric](source), size_class(source.bytes)), 1.0)


def _run(event: ev.RunStarted, _time: float) -> list[Update]:
    return [_row(m.OBS_BUILD, 1, event, version=event.obs_version), Update(m.WORKER_UP, (), 1.0)]


def _worker_starting(event: ev.WorkerStarting, _time: float) -> list[Update]:
    # Starts are counted from 0, so that the first of a kind is an increase.
    none = [Update(m.WORKER_STARTS, (outcome, "", ""), 0.0) for outcome in ("failure", "success")]
    return [_row(m.WORKER_INFO, 1, event), *none]


def _worker_ready(_event: ev.WorkerReady, _time: float) -> list[Update]:
    return [Update(m.WORKER_STARTS, ("success", "", ""), 1.0)]


def _worker_failed(event: ev.WorkerFailed, _time: float) -> list[Update]:
    return [_row(m.WORKER_STARTS, 1, event)]


def _hooks(event: ev.HooksReported, _time: float) -> list[Update]:
    counts = {
        "installed": event.installed,
        "pending": event.pending,
        "missing": len(event.missing),
    }
    rows = [Update(m.OBS_HOOKS, (state,), float(count)) for state, count in counts.items()]
    return rows + [Update(m.OBS_HOOK_MISSING, (target,), 1.0) for target in event.missing]


def _draft_builder(event: ev.DraftBuilderReported, _time: float) -> list[Update]:
    return [
        Update(m.DRAFT_BUILDER, (state,), float(state == event.state))
        for state in ((event.before, event.state) if event.before else (event.state,))
    ]


def _call_entered(event: ev.CallEntered, _time: float) -> list[Update]:
    return [_row(m.CALL_IN_PROGRESS, event.since, event)]


def _call_returned(event: ev.CallReturned, _time: float) -> list[Update]:
    return [_row(m.CALL_IN_PROGRESS, 0, event)]


def _call_refused(_event: ev.CallRefused, _time: float) -> list[Update]:
    """Nothing yet: the event that ends the call says it all."""
    return []


def _allocator(event: ev.AllocatorChosen, _time: float) -> list[Update]:
    return [_row(m.FALLBACKS, 1, event)] if event.reason else []


def _limit(event: ev.LimitSeen, _time: float) -> list[Update]:
    return [
        _row(m.HOST_LIMIT, event.limit_bytes, event),
        _row(m.HOST_MEMORY, event.free_bytes, event),
    ]


def _segment(event: ev.SegmentAllocated, _time: float) -> list[Update]:
    return [_row(m.CALL_IN_PROGRESS, 0, event, api="allocate")]


def _pin(event: ev.PagesPinned, _time: float) -> list[Update]:
    rows = [
        _row(m.CALL_IN_PROGRESS, 0, event, api="pin"),
        _row(m.PINS, 1, event),
        _row(m.PINNED_BYTES, event.pinned_bytes, event),
    ]
    if event.failed:
        rows.append(_failure(1, event, stage="pinning", mode="", cause="pin"))
    return rows


def _failure(value: float, source: Any, **more: object) -> Update:
    return _row(m.FAILURE_ACTIVE, value, source, **more)


def _pool(event: ev.PoolBuilt, _time: float) -> list[Update]:
    rows = [
        _sized_row(m.ALLOCATIONS, event),
        _row(m.ALLOCATION_DURATION, event.duration_s, event),
    ]
    if event.failed:
        stage = allocation_stage(event.reason)
        return [*rows, _failure(1, event, stage=stage, mode="", cause=event.reason)]
    if event.outcome != "success":
        return rows
    for mode, allocator, code, cause in event.mended:
        ended = {"mode": mode, "allocator": allocator, "code": code, "cause": cause}
        rows.append(_failure(0, event, stage=allocation_stage(cause), **ended))
    return rows + _standing(event)


def _standing(event: ev.PoolBuilt | ev.PoolNamed) -> list[Update]:
    rows = [_row(m.POOL_INFO, 1, event), *_held(event)]
    if event.expected is not None:
        rows.append(_row(m.POOL_EXPECTED, event.expected, event))
    if event.expected:
        rows.append(_row(m.POOL_REGISTERED, 0, event))
        rows.append(_failure(0, event, stage="registration", code="", cause=""))
    return rows


def _pool_named(event: ev.PoolNamed, _time: float) -> list[Update]:
    rows = _standing(event)
    if event.pinned_bytes:
        rows.append(_row(m.PINNED_BYTES, event.pinned_bytes, event))
    if event.registered_bytes:
        rows.append(_row(m.REGISTERED_BYTES, event.registered_bytes, event))
        rows.append(_row(m.POOL_REGISTERED, 1, event))
    return rows


def _held(event: ev.PoolFacts) -> list[Update]:
    return [
        _row(m.POOL_BYTES, event.held_bytes, event),
        _row(m.POOL_TOKENS, event.held_tokens, event),
    ]


def _pool_released(event: ev.PoolReleased, _time: float) -> list[Update]:
    pinned = _row(m.PINNED_BYTES, event.pinned_bytes, event)
    rows = [_row(m.POOL_INFO, 0, event), *_held(event), pinned]
    if event.mode:
        rows.append(_row(m.REGISTERED_BYTES, event.registered_bytes, event))
        rows.append(_row(m.POOL_REGISTERED, 0, event))
        rows.append(_row(m.POOL_EXPECTED, 0, event))
    return rows


def _mismatch(event: ev.MismatchSeen, _time: float) -> list[Update]:
    return [_row(m.MISMATCH, event.active, event, harmful=str(event.harmful).lower())]


def _setup(event: ev.StoreSetUp, _time: float) -> list[Update]:
    none = {"role": "none", "pool": "", "allocator": ""}
    rows = [_row(m.CALL_IN_PROGRESS, 0, event, **none), _row(m.STORE_SETUPS, 1, event)]
    if event.outcome == "interrupted":
        return rows
    rows += [
        _row(m.STORE_INFO, not event.failed, event),
        _failure(0, event, stage="setup", **none | {"code": "", "cause": ""}),
    ]
    if event.failed:
        rows.append(_failure(1, event, stage="setup", **none))
    return rows + _mended(event, stage="setup", role="none", pool="")


def _transport(event: ev.TransportChosen, _time: float) -> list[Update]:
    return [_row(m.TRANSPORT_INFO, 1, event)]


def _mended(
    event: ev.StoreSetUp | ev.BufferRegistered | ev.BackendAttached, **more: object
) -> list[Update]:
    return [
        _failure(0, event, **more, mode=mode, allocator=allocator, code=code, cause=cause)
        for mode, allocator, code, cause in event.mended
    ]


def _registration(event: ev.BufferRegistered, time: float) -> list[Update]:
    rows = [
        _row(m.CALL_IN_PROGRESS, 0, event),
        _sized_row(m.REGISTRATIONS, event),
        _row(m.REGISTERED_BYTES, event.registered_bytes, event),
        _row(m.REGISTRATION_DURATION, event.duration_s, event),
    ]
    if event.failed:
        rows += [
            _failure(1, event, stage="registration"),
            _row(m.LAST_FAILURE_TIME, time, event),
            _row(m.LAST_FAILURE_BYTES, event.bytes, event),
        ]
    return rows + _mended(event, stage="registration")


def _pool_registration(event: ev.PoolRegistered, _time: float) -> list[Update]:
    done = event.outcome == "success"
    return [_row(m.POOL_EXPECTED, 1, event), _row(m.POOL_REGISTERED, done, event)]


def _unregistration(event: ev.BufferUnregistered, _time: float) -> list[Update]:
    return [_row(m.REGISTERED_BYTES, event.registered_bytes, event)]


def _attach(event: ev.BackendAttached, _time: float) -> list[Update]:
    none = {"mode": "", "role": "none", "pool": "", "allocator": "", "code": ""}
    rows = []
    if event.failed and event.cause:
        rows.append(_failure(1, event, stage="attach", **none))
    return rows + _mended(event, stage="attach", role="none", pool="")


def _detach(event: ev.BackendDetached, _time: float) -> list[Update]:
    rows = [_row(m.STORE_INFO, 0, event)]
    for role, pool in event.pools:
        rows += [Update(m.POOL_EXPECTED, (role, pool), 0.0)]
        rows += [Update(m.POOL_REGISTERED, (role, pool), 0.0)]
    for stage, role, pool, mode, allocator, code, cause in event.ended:
        labels = (stage, mode, role, pool, allocator, code, cause)
        rows.append(Update(m.FAILURE_ACTIVE, labels, 0.0))
    return rows


def _journal_lost(event: ev.JournalLost, _time: float) -> list[Update]:
    return [Update(m.OBS_JOURNAL_LOST, (), float(event.lost))]


def _obs_error(event: ev.ObsError, _time: float) -> list[Update]:
    return [Update(m.OBS_ERRORS, (event.where,), float(event.count))]


_UPDATES: Mapping[str, Callable[[Any, float], list[Update]]] = {
    ev.RunStarted.kind: _run,
    ev.WorkerStarting.kind: _worker_starting,
    ev.WorkerReady.kind: _worker_ready,
    ev.WorkerFailed.kind: _worker_failed,
    ev.HooksReported.kind: _hooks,
    ev.DraftBuilderReported.kind: _draft_builder,
    ev.CallEntered.kind: _call_entered,
    ev.CallReturned.kind: _call_returned,
    ev.CallRefused.kind: _call_refused,
    ev.AllocatorChosen.kind: _allocator,
    ev.LimitSeen.kind: _limit,
    ev.SegmentAllocated.kind: _segment,
    ev.PagesPinned.kind: _pin,
    ev.PoolBuilt.kind: _pool,
    ev.PoolNamed.kind: _pool_named,
    ev.PoolReleased.kind: _pool_released,
    ev.MismatchSeen.kind: _mismatch,
    ev.StoreSetUp.kind: _setup,
    ev.TransportChosen.kind: _transport,
    ev.BufferRegistered.kind: _registration,
    ev.BufferUnregistered.kind: _unregistration,
    ev.PoolRegistered.kind: _pool_registration,
    ev.BackendAttached.kind: _attach,
    ev.BackendDetached.kind: _detach,
    ev.JournalLost.kind: _journal_lost,
    ev.ObsError.kind: _obs_error,
}
