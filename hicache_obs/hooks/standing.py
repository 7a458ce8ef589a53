"""The host pools that stand: their names by later evidence, and their end."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from hicache_obs import classify, recorder
from hicache_obs.events import PoolBuilt, PoolFacts, PoolNamed, PoolReleased
from hicache_obs.hooks import memory, mismatch, scope
from hicache_obs.hooks.around import Call
from hicache_obs.ledger import Pool, PoolKey, RegistrationKey
from hicache_obs.sglang_pools import OUTSIDE

_built: dict[int, PoolBuilt] = {}
"""Construction events of the pools that stand, by pool id."""
_ids: dict[int, int] = {}
"""``id(pool)`` to pool id, for pools that stand."""


def add(rec: recorder.Recorder, pool: Any, built: PoolBuilt) -> None:
    """A pool stands from now on, until it is destroyed or collected."""
    _built[built.pool_id], _ids[id(pool)] = built, built.pool_id
    finalizer = weakref.finalize(pool, _collected, rec, id(pool), built.pool_id)
    finalizer.atexit = False


def known(pool: Any) -> Pool | None:
    """The ledger's record of a pool object that stands; of the one behind a facade."""
    rec = recorder.get()
    with rec.locked():
        return rec.ledger.pool(_ids.get(id(memory.behind(pool)), 0))


def name(pool: Any, role: str, pool_name: str) -> PoolKey:
    """Give a standing pool the role and name of its group or registration; returns its labels.

    A pool of an owner outside the cache tree keeps the owner's name.
    """
    rec = recorder.get()
    record = known(pool)
    if record is None:
        allocator = memory.vars_of(memory.behind(pool)).get("allocator")
        return PoolKey(role, pool_name, classify.allocator_label(type(allocator).__name__))
    old = record.key
    if old.pool not in OUTSIDE and (role, pool_name) != (old.role, old.pool):
        with rec.locked():
            rec.ledger.rename_pool(record.pool_id, role, pool_name)
        _renamed(rec, record, old)
    return record.key


def group(call: Call) -> Iterator[None]:
    """``HostPoolGroup.__init__(entries)``: each entry has a ``name`` and a ``host_pool``."""
    yield
    if call.error is None:
        for entry in call.argument(1, "entries") or ():
            _name_entry(entry)


def group_entry(call: Call) -> Iterator[None]:
    """``HostPoolGroup.add_entry(entry)`` (0.5.18 and later): a side pool that comes later."""
    yield
    if call.error is None:
        _name_entry(call.argument(1, "entry"))


def _name_entry(entry: Any) -> None:
    own = memory.vars_of(entry)
    if known(own.get("host_pool")) is not None:
        name(own["host_pool"], *scope.name_registered(own.get("name")))


def _renamed(rec: recorder.Recorder, pool: Pool, old: PoolKey) -> None:
    """End the rows of the old name and tell those of the new one."""
    built = _built.get(pool.pool_id)
    if built is None:
        return
    rec.emit(_release(rec, built, old, "renamed"))
    pool.expected = mismatch.expects_registration(rec, pool)
    _tell(rec, built, pool)
    mismatch.rename(rec, pool)


def _tell(rec: recorder.Recorder, built: PoolBuilt, pool: Pool) -> None:
    with rec.locked():
        held_bytes, held_tokens = rec.ledger.held(pool.key)
        pinned = rec.ledger.pinned_bytes(pool.key.role, pool.key.pool)
        registered = rec.ledger.registered_bytes(RegistrationKey(rec.mode, *pool.key))
    rec.emit(
        PoolNamed(
            **_facts(built, pool.key, held_bytes, held_tokens),
            mode=rec.mode,
            expected=pool.expected,
            pinned_bytes=pinned,
            registered_bytes=registered,
        )
    )


def destroy(call: Call) -> Iterator[None]:
    """``<host pool class>.destroy``: unpins and drops the buffers (0.5.14 and later; idempotent).

    A subclass calls its base's: the pool is gone for us when the first of them comes back.
    """
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
        heirs = rec.ledger.sharers(pool)
        modes = rec.ledger.modes(pool.key) or [built.mode]
        rec.ledger.release_pool(pool_id)
    for mode in modes:
        rec.emit(_release(rec, built, pool.key, how, mode))
    for heir in heirs:  # what they shared with this pool is theirs now
        if heir.key != pool.key and heir.pool_id in _built:
            _tell(rec, _built[heir.pool_id], heir)


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


def owned(owner: str) -> Callable[[Call], Iterator[None]]:
    """The constructor of an owner outside the cache tree: the pools built in it are its own."""

    def observe(_call: Call) -> Iterator[None]:
        with scope.owned_by(owner):
            yield

    return observe


def _forget_in_child() -> None:
    """A forked child has a ledger of its own, in which no pool of its parent stands."""
    _built.clear()
    _ids.clear()


os.register_at_fork(after_in_child=_forget_in_child)
