"""Host pool constructors: role, name, bytes, allocator asked for and got."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from hicache_obs import classify, recorder
from hicache_obs.events import LimitSeen, PoolBuilt
from hicache_obs.hooks import host_facts, limits, memory, mismatch, scope, standing
from hicache_obs.hooks.around import Call
from hicache_obs.ledger import FailureRow, Pool, PoolKey
from hicache_obs.ranges import merge_ranges
from hicache_obs.sglang_pools import SHARED_BUFFER

_backings: weakref.WeakKeyDictionary[Any, scope.Build] = weakref.WeakKeyDictionary()
"""How the memory under shared pools was asked for, as long as it lives."""


def host_pool(call: Call) -> Iterator[None]:
    """``<host pool class>.__init__``. A subclass and its base both are hooked: the outer counts.

    Raises in SGLang when the memory cannot be had: ValueError (size check), RuntimeError
    (page-locking, allocator), AssertionError (smaller than the device pool, up to 0.5.14),
    NotImplementedError or ValueError for a layout that the class does not have.
    """
    pool = call.args[0]
    outer = scope.build()
    if outer is not None and outer.owner == id(pool):
        yield
        return
    rec = recorder.get()
    _tell_limits(rec)
    label = call.named("pool_label") or call.named("pool_name")
    role, name = scope.name_pool(type(pool), label)
    build = scope.Build(owner=id(pool), role=role, pool=name)
    with scope.building(build):
        yield
    if call.error is not None:
        _tell_failure(rec, call, pool, build)
        return
    own = memory.vars_of(pool)
    label = own.get("pool_label") or own.get("pool_name") or label
    build.role, build.pool = scope.name_pool(type(pool), label)
    for found, shared in _backings.items():
        if found is own.get(SHARED_BUFFER[0]):
            build.take_over(shared)
    _record(rec, call, pool, build)


def backing(call: Call) -> Iterator[None]:
    """``_SharedPageEnvelopeHostBacking.__init__``: the memory of one or two pools, made before
    them (mem_cache/pool_host/unified.py, 0.5.21 and later). No pool of its own."""
    rec = recorder.get()
    _tell_limits(rec)
    role, name = scope.name_pool(type(call.args[0]), "kv")
    build = scope.Build(owner=id(call.args[0]), role=role, pool=name)
    with scope.building(build):
        yield
    if call.error is None:
        _backings[call.args[0]] = build
    elif scope.build() is None:  # else it fails inside the constructor of a pool, which tells
        _tell_failure(rec, call, call.args[0], build)


def _tell_limits(rec: recorder.Recorder) -> None:
    """Here and not at ``allocate``: a request that fails SGLang's size check never gets there."""
    for limit in (*limits.each(), *host_facts.host_facts()):
        source = "psutil" if limit.limit_source == "host" else limit.limit_source
        free = max(0, limit.free)
        rec.emit(LimitSeen(source=source, limit_bytes=limit.limit_bytes, free_bytes=free))


def _tell_failure(rec: recorder.Recorder, call: Call, pool: Any, build: scope.Build) -> None:
    reason = ""
    if call.error is not None and call.failed:
        reason = classify.allocation_reason(type(call.error).__name__, call.message)
        if build.pin_code:  # SGLang may have raised another error on top of it
            reason = "pin"
        rec.blame(call.error, classify.allocation_stage(reason), reason)
    rec.emit(_event(call, pool, build, rec.next_call(), (), reason=reason, expected=None))


def _record(rec: recorder.Recorder, call: Call, pool: Any, build: scope.Build) -> None:
    segments = [(address, size) for address, size, _ in build.segments]
    ranges = merge_ranges([*segments, *memory.pool_ranges(pool)])
    pool_id = rec.next_call()
    with rec.locked():
        build.actual = rec.ledger.allocator_of(ranges)
        key = PoolKey(build.role, build.pool, _allocator(build))
        record = Pool(pool_id, key, build.requested_type, _int(pool, "size"), ranges)
        rec.ledger.add_pool(record)
    record.expected = mismatch.expects_registration(rec, record)
    expected = record.expected
    built = _event(call, pool, build, pool_id, ranges, reason=build.reason, expected=expected)
    standing.add(rec, pool, built)
    rec.emit(built)
    mismatch.check_pool(rec, pool_id, build)


def _allocator(build: scope.Build) -> str:
    """By the memory that the pool got, else by the allocator object that it was given."""
    return build.actual or build.allocator or "other"


def _event(
    call: Call,
    pool: Any,
    build: scope.Build,
    pool_id: int,
    ranges: tuple[tuple[int, int], ...],
    *,
    reason: str,
    expected: bool | None,
) -> PoolBuilt:
    rec = recorder.get()
    allocator = _allocator(build)
    with rec.locked():
        held_bytes, held_tokens = rec.ledger.held(PoolKey(build.role, build.pool, allocator))
    own = memory.vars_of(pool)
    size = sum(size for _, size in ranges)
    outcome = call.outcome | ({"outcome": "failure"} if reason else {})
    code = build.pin_code or classify.code_in(call.message) if reason == "pin" else ""
    mended: list[FailureRow] = []
    with rec.locked():
        if reason:
            row = FailureRow("", allocator, code, reason)
            rec.ledger.add_failure(classify.allocation_stage(reason), build.role, build.pool, row)
        elif call.error is None:
            for stage in ("allocation",) if build.pin_code else ("allocation", "pinning"):
                mended += rec.ledger.mend(stage, build.role, build.pool)
    return PoolBuilt(
        pool_id=pool_id,
        role=build.role,
        pool=build.pool,
        pool_class=type(pool).__name__,
        allocator=allocator,
        requested_allocator=build.requested or "default",
        layout=str(own.get("layout", "")),
        dtype=str(own.get("dtype", "")).removeprefix("torch."),
        page_size=_int(pool, "page_size"),
        draft_layers=_draft_layers(own),
        bytes=size or _int(pool, "size") * _int(pool, "size_per_token"),
        tokens=_int(pool, "size"),
        held_bytes=held_bytes,
        held_tokens=held_tokens,
        reason=reason,
        code=code,
        mode=rec.mode,
        expected=expected,
        mended=tuple(mended),
        **outcome,
    )


def _draft_layers(own: dict[str, Any]) -> int:
    """Draft layers packed into a target's pool (0.5.18 and later): no pool of their own."""
    layers, of_target = own.get("layer_num"), own.get("target_layer_num")
    if isinstance(layers, int) and isinstance(of_target, int):
        return layers - of_target
    for name in ("mtp_draft_buffer_infos", "mtp_draft_device_pools"):
        packed = own.get(name)
        if isinstance(packed, (list, tuple)):
            return len(packed)
    return 0


def _int(pool: Any, name: str) -> int:
    value = memory.vars_of(pool).get(name, 0)
    return value if isinstance(value, int) else 0
