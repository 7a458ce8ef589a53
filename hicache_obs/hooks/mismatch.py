"""Allocators that are not what they should be: told when the pool is built."""

from __future__ import annotations

import os

from hicache_obs import classify, faults, recorder
from hicache_obs.events import MismatchSeen
from hicache_obs.hooks import draft, scope
from hicache_obs.ledger import Pool

_seen: dict[int, MismatchSeen] = {}
"""The mismatch of each pool that has one, by pool id."""


def expects_registration(rec: recorder.Recorder, pool: Pool) -> bool | None:
    """Whether *pool* should be registered; None where the worker is not known.

    A pool without memory of its own is not: a logical anchor, a rank that holds no copy of an
    MLA cache, the second pool over shared memory. HiSparse never gives its pools to a store.
    """
    worker = rec.worker
    if not worker.hicache:
        return None
    with rec.locked():
        none = rec.ledger.covered(pool)
    if none or worker.storage_backend != "mooncake" or pool.key.pool == "hisparse":
        return False
    return pool.key.role != scope.DRAFT or draft.release_registers_draft()


def check_pool(rec: recorder.Recorder, pool_id: int, build: scope.Build) -> None:
    """Compare a new pool's allocator with what was asked for, with the allocator object that
    SGLang gave it, and with the target's."""
    with rec.locked():
        pool = rec.ledger.pool(pool_id)
    if pool is None:
        return
    if build.fallback:
        _tell(rec, pool, build.requested, "fallback", rec.mode)
    elif build.actual and build.allocator not in ("", "default", build.actual):
        _tell(rec, pool, build.allocator, "bypassed", rec.mode)
    else:
        _compare_with_target(rec, pool)


def _compare_with_target(rec: recorder.Recorder, pool: Pool) -> None:
    with rec.locked():
        target = rec.ledger.newest_pool(scope.TARGET)
    if pool.key.role != scope.DRAFT or target is None or not pool.ranges:
        return
    if target.key.allocator != pool.key.allocator:
        _tell(rec, pool, target.key.allocator, "draft_differs_from_target", rec.mode)


def check_store(rec: recorder.Recorder, mode: str, refused: Pool | None) -> None:
    """The store's mode is known now: say anew what it makes of the mismatches.

    Args:
        refused: the pool whose allocator the store did not want, if it was that.
    """
    with rec.locked():
        pools = rec.ledger.pools()
    for pool in pools:
        told = _seen.get(pool.pool_id)
        if told is not None:
            _tell(rec, pool, told.expected, told.reason, mode)
    if refused is not None and refused.pool_id not in _seen:
        refused.expected = True
        _tell(rec, refused, "mooncake", "backend_requires", mode)


def _tell(rec: recorder.Recorder, pool: Pool, expected: str, reason: str, mode: str) -> None:
    """Harmful is only what will be registered with a standalone store: it answers -1."""
    seen = MismatchSeen(
        role=pool.key.role,
        pool=pool.key.pool,
        expected=expected,
        actual=pool.key.allocator,
        reason=reason,
        harmful=mode == classify.STANDALONE and pool.expected is not False,
    )
    told = _seen.get(pool.pool_id)
    if told == seen:
        return
    if told is not None:
        rec.emit(_ended(told))
    _seen[pool.pool_id] = seen
    rec.emit(seen)
    if seen.harmful:
        faults.logger.warning(
            "hicache-obs: the %s host pool (pool %s) has allocator %s where %s is needed (%s); "
            "a standalone Mooncake client will refuse it",
            *(seen.role, seen.pool, seen.actual, seen.expected, seen.reason),
        )


os.register_at_fork(after_in_child=_seen.clear)


def _ended(told: MismatchSeen) -> MismatchSeen:
    return MismatchSeen(
        role=told.role,
        pool=told.pool,
        expected=told.expected,
        actual=told.actual,
        reason=told.reason,
        harmful=told.harmful,
        active=False,
    )


def rename(rec: recorder.Recorder, pool: Pool) -> None:
    """The pool has another role or name now: what was told of it moves, or is looked for anew."""
    told = _seen.get(pool.pool_id)
    end(rec, pool.pool_id)
    if told is not None and told.reason != "draft_differs_from_target":
        _tell(rec, pool, told.expected, told.reason, rec.mode)
    else:
        _compare_with_target(rec, pool)


def end(rec: recorder.Recorder, pool_id: int) -> None:
    """The pool is gone, and its mismatch with it."""
    told = _seen.pop(pool_id, None)
    if told is not None:
        rec.emit(_ended(told))
