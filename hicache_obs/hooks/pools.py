"""Host pool constructors and their end: role, name, bytes, allocator asked for and got."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from hicache_obs import classify, recorder
from hicache_obs.events import LimitSeen, PoolBuilt, PoolFacts, PoolNamed, PoolReleased
from hicache_obs.hooks import limits, memory, mismatch, scope
from hicache_obs.hooks.around import Call
from hicache_obs.ledger import FailureRow, Pool, PoolKey, RegistrationKey, merge_ranges

_built: dict[int, PoolBuilt] = {}
"""Construction events of the pools that stand, by pool id."""
_ids: dict[int, int] = {}
"""``id(pool)`` to pool id, for pools that stand."""


def host_pool(call: Call) -> Iterator[None]:
    """``<host pool class>.__init__``. A subclass and its base both are hooked: the outer counts.

    Raises in SGLang when the memory cannot be had: ValueError (size check), RuntimeError
    (page-locking, allocator), AssertionError (smaller than the device pool, up to 0.5.14).
    """
    pool = call.args[0]
    outer = scope.build()
    if outer is not None and outer.owner == id(pool):
        yield
        return
    rec = recorder.get()
    # Here and not at `allocate`: a request that fails SGLang's size check never gets there.
    for limit in limits.each():
        rec.emit(_limit_seen(limit))
    role, name = scope.name_pool(call.kwargs.get("pool_label"))
    build = scope.Build(owner=id(pool), role=role, pool=name)
    with scope.building(build):
        yield
    if call.error is not None:
        reason = ""
        if call.failed:
            reason = classify.allocation_reason(type(call.error).__name__, call.message)
            rec.blame(call.error, classify.allocation_stage(reason), reason)
        rec.emit(_event(call, pool, build, rec.next_call(), (), reason=reason, expected=None))
        return
    role, name = scope.name_pool(memory.vars_of(pool).get("pool_label"))
    build.role, build.pool = role, name
    _record(rec, call, pool, build)


def _limit_seen(limit: limits.Limit) -> LimitSeen:
    source = "psutil" if limit.limit_source == "host" else limit.limit_source
    free = max(0, limit.free)
    return LimitSeen(source=source, limit_bytes=limit.limit_bytes, free_bytes=free)


def _record(rec: recorder.Recorder, call: Call, pool: Any, build: scope.Build) -> None:
    segments = [(address, size) for address, size, _ in build.segments]
    ranges = merge_ranges(segments or memory.pool_ranges(pool))
    pool_id = rec.next_call()
    key = PoolKey(build.role, build.pool, _actual_allocator(build))
    expected = mismatch.expects_registration(build.role)
    with rec.locked():
        rec.ledger.add_pool(
            Pool(pool_id, key, build.requested_type, _int(pool, "size"), ranges, expected)
        )
    built = _event(call, pool, build, pool_id, ranges, reason=build.reason, expected=expected)
    _built[pool_id], _ids[id(pool)] = built, pool_id
    finalizer = weakref.finalize(pool, _collected, rec, id(pool), pool_id)
    finalizer.atexit = False
    rec.emit(built)
    mismatch.check_pool(rec, pool_id, build.requested if build.fallback else "")


def _actual_allocator(build: scope.Build) -> str:
    """By the memory that the pool got, else by the allocator object that it was given."""
    return build.segments[-1][2] if build.segments else build.allocator or "other"


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
    allocator = _actual_allocator(build)
    with rec.locked():
        held_bytes, held_tokens = rec.ledger.held(PoolKey(build.role, build.pool, allocator))
    own = memory.vars_of(pool)
    layers, target_layers = own.get("layer_num"), own.get("target_layer_num")
    packed = 0
    if isinstance(layers, int) and isinstance(target_layers, int):
        packed = layers - target_layers
    size = sum(size for _, size in ranges)
    outcome = call.outcome | ({"outcome": "failure"} if reason else {})
    code = classify.code_in(call.message) if reason == "pin" else ""
    mended: list[FailureRow] = []
    with rec.locked():
        if reason:
            row = FailureRow("", allocator, code, reason)
            rec.ledger.add_failure(classify.allocation_stage(reason), build.role, build.pool, row)
        elif call.error is None:
            for stage in ("allocation", "pinning"):
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
        draft_layers=packed,
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


def _int(pool: Any, name: str) -> int:
    value = memory.vars_of(pool).get(name, 0)
    return value if isinstance(value, int) else 0


def known(pool: Any) -> Pool | None:
    """The ledger's record of a pool object that stands."""
    rec = recorder.get()
    with rec.locked():
        return rec.ledger.pool(_ids.get(id(pool), 0))


def name(pool: Any, role: str, pool_name: str) -> str:
    """Give a standing pool the role and name of its registration; returns its allocator."""
    rec = recorder.get()
    with rec.locked():
        record = rec.ledger.pool(_ids.get(id(pool), 0))
        if record is None:
            allocator = memory.vars_of(pool).get("allocator")
            return classify.allocator_label(type(allocator).__name__)
        old = record.key
        rec.ledger.rename_pool(record.pool_id, role, pool_name)
    if record.key != old:
        _renamed(rec, record, old)
    return record.key.allocator


def _renamed(rec: recorder.Recorder, pool: Pool, old: PoolKey) -> None:
    """End the rows of the old name and tell those of the new one."""
    built = _built.get(pool.pool_id)
    if built is None:
        return
    rec.emit(_release(rec, built, old, "renamed"))
    with rec.locked():
        held_bytes, held_tokens = rec.ledger.held(pool.key)
        pinned = rec.ledger.pinned_bytes(pool.key.role, pool.key.pool)
    pool.expected = mismatch.expects_registration(pool.key.role)
    facts = _facts(built, pool.key, held_bytes, held_tokens)
    rec.emit(PoolNamed(**facts, mode=rec.mode, expected=pool.expected, pinned_bytes=pinned))
    mismatch.rename(rec, pool)


def destroy(call: Call) -> Iterator[None]:
    """``HostKVCache.destroy``: unpins and drops the buffers (0.5.14 and later; idempotent)."""
    yield
    if call.error is None:
        pool = call.args[0]
        _released(recorder.get(), id(pool), _ids.get(id(pool), 0), "destroy")


def _collected(rec: recorder.Recorder, object_id: int, pool_id: int) -> None:
    rec.defer(lambda: _released(rec, object_id, pool_id, "collected"))


def _released(rec: recorder.Recorder, object_id: int, pool_id: int, how: str) -> None:
    built = _built.pop(pool_id, None)
    if built is None:
        return
    if _ids.get(object_id) == pool_id:
        del _ids[object_id]
    mismatch.end(rec, pool_id)
    with rec.locked():
        pool = rec.ledger.pool(pool_id)
        if pool is None:
            return
        modes = rec.ledger.modes(pool.key) or [built.mode]
        rec.ledger.release_pool(pool_id)
    for mode in modes:
        rec.emit(_release(rec, built, pool.key, how, mode))


def _release(
    rec: recorder.Recorder, built: PoolBuilt, key: PoolKey, how: str, mode: str | None = None
) -> PoolReleased:
    """The end of a pool's rows under *key*, with the totals that are left."""
    mode = built.mode if mode is None else mode
    with rec.locked():
        held_bytes, held_tokens = rec.ledger.held(key)
        registered = rec.ledger.registered_bytes(RegistrationKey(mode, *key))
        pinned = rec.ledger.pinned_bytes(key.role, key.pool)
    return PoolReleased(
        **_facts(built, key, held_bytes, held_tokens),
        mode=mode,
        how=how,
        registered_bytes=registered,
        pinned_bytes=pinned,
    )


def _facts(built: PoolBuilt, key: PoolKey, held_bytes: int, held_tokens: int) -> dict[str, Any]:
    """The fields of ``PoolFacts`` under *key*, as of now."""
    facts = {field.name: getattr(built, field.name) for field in fields(PoolFacts)}
    named = {"role": key.role, "pool": key.pool}
    return facts | named | {"held_bytes": held_bytes, "held_tokens": held_tokens}


def _forget_in_child() -> None:
    """A forked child has a ledger of its own, in which no pool of its parent stands."""
    _built.clear()
    _ids.clear()


os.register_at_fork(after_in_child=_forget_in_child)
