"""What is allocated, by which allocator, for which pool and role, and what is registered.

The ledger holds numbers only: no tensor, and no finalizer on one (a view outlives the tensor it
was made from). Addresses are reused as soon as they are freed, so a new segment evicts whatever
it overlaps. Registered bytes are keyed by address: registering the same buffer twice answers 0
and adds nothing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hicache_obs.ranges import inside, merge_ranges
from hicache_obs.sglang_pools import OUTSIDE


@dataclass(frozen=True)
class Segment:
    """Memory that one ``allocate`` call returned: ``[address, address + bytes)``."""

    address: int
    bytes: int
    allocator: str
    role: str
    pool: str

    @property
    def end(self) -> int:
        return self.address + self.bytes


class Provenance(NamedTuple):
    """Where a buffer comes from: ``null``, ``exact``, ``part`` of a segment, or ``foreign``."""

    relation: str
    segment: Segment | None


class PoolKey(NamedTuple):
    """The labels by which pools are counted."""

    role: str
    pool: str
    allocator: str


@dataclass
class Pool:
    """A host pool. *ranges* are its buffers as ``(address, bytes)``, without overlap;
    *requested_type* is the ``allocator_type`` that SGLang asked for."""

    pool_id: int
    key: PoolKey
    requested_type: object
    tokens: int
    ranges: tuple[tuple[int, int], ...]
    expected: bool | None = None

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.ranges)


class RegistrationKey(NamedTuple):
    """The labels by which registered bytes are counted."""

    mode: str
    role: str
    pool: str
    allocator: str


class FailureRow(NamedTuple):
    """The labels of a failure that a later success may end."""

    mode: str
    allocator: str
    code: str
    cause: str


class Ledger:
    """The memory of one process. Not locked: ``recorder`` serialises access."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._addresses: list[int] = []
        self._pools: dict[int, Pool] = {}
        self._registered: dict[int, tuple[int, RegistrationKey]] = {}
        self._pinned: dict[int, tuple[int, str, str]] = {}
        self.failed_buffers: set[int] = set()
        """Addresses that the transfer engine has refused and not taken since."""
        self._failures: dict[tuple[str, str, str], set[FailureRow]] = {}

    # Segments

    def add_segment(self, segment: Segment) -> None:
        """Record a new segment and forget every older one that it overlaps."""
        if segment.address == 0 or segment.bytes <= 0:
            return
        for old in self._overlapping(segment.address, segment.end):
            del self._segments[old.address]
            self._addresses.remove(old.address)
        self._segments[segment.address] = segment
        insort(self._addresses, segment.address)

    def _overlapping(self, start: int, end: int) -> list[Segment]:
        found = []
        index = max(0, bisect_right(self._addresses, start) - 1)
        for address in self._addresses[index:]:
            if address >= end:
                break
            if self._segments[address].end > start:
                found.append(self._segments[address])
        return found

    def provenance(self, address: int, size: int) -> Provenance:
        """How ``[address, address + size)`` relates to the segments known now."""
        if address == 0:
            return Provenance("null", None)
        for segment in self._overlapping(address, address + max(size, 1)):
            if segment.address <= address and address + size <= segment.end:
                exact = (segment.address, segment.bytes) == (address, size)
                return Provenance("exact" if exact else "part", segment)
            return Provenance("part", segment)
        return Provenance("foreign", None)

    def allocator_of(self, ranges: Iterable[tuple[int, int]]) -> str:
        """The allocator that most of the bytes in *ranges* came from: ``other`` where that is
        none that we know, "" for no bytes."""
        shares: dict[str, int] = {}
        for address, size in ranges:
            segment = self.provenance(address, size).segment
            allocator = segment.allocator if segment else "other"
            shares[allocator] = shares.get(allocator, 0) + size
        return max(shares, key=lambda name: shares[name], default="")

    # Pools

    def add_pool(self, pool: Pool) -> None:
        self._pools[pool.pool_id] = pool

    def pool(self, pool_id: int) -> Pool | None:
        return self._pools.get(pool_id)

    def release_pool(self, pool_id: int) -> Pool | None:
        """Forget a pool and what is pinned and registered of its memory; None if not known.

        What it shared with a pool that stays goes on under that one's labels.
        """
        pool = self._pools.pop(pool_id, None)
        if pool is None:
            return None
        heirs = self.sharers(pool)
        for address in [a for a in self._registered if inside(a, pool.ranges)]:
            size, key = self._registered.pop(address)
            heir = _holder(address, heirs)
            if heir is not None:
                self._registered[address] = (size, RegistrationKey(key.mode, *heir.key))
        for address in [a for a in self._pinned if inside(a, pool.ranges)]:
            size, _, _ = self._pinned.pop(address)
            heir = _holder(address, heirs)
            if heir is not None:
                self._pinned[address] = (size, heir.key.role, heir.key.pool)
        return pool

    def rename_pool(self, pool_id: int, role: str, pool: str) -> None:
        """Later evidence of role and name wins (the PoolName given at registration)."""
        known = self._pools.get(pool_id)
        if known is None:
            return
        known.key = known.key._replace(role=role, pool=pool)
        for address, (size, _, _) in list(self._pinned.items()):
            if inside(address, known.ranges):
                self._pinned[address] = (size, role, pool)

    def held(self, key: PoolKey) -> tuple[int, int]:
        """Bytes and tokens now held under *key*; memory shared by two pools counts once."""
        total = tokens = before = 0
        owned: tuple[tuple[int, int], ...] = ()
        for pool in self._pools.values():
            owned = merge_ranges([*owned, *pool.ranges])
            after = sum(size for _, size in owned)
            if pool.key == key:
                total += after - before
                tokens += pool.tokens
            before = after
        return total, tokens

    def pool_at(self, address: int) -> Pool | None:
        """The pool that has *address* in its memory."""
        return next((p for p in self._pools.values() if inside(address, p.ranges)), None)

    def sharers(self, pool: Pool) -> list[Pool]:
        """The other pools that share memory with *pool*."""
        return [
            other
            for other in self._pools.values()
            if other is not pool and any(inside(start, pool.ranges) for start, _ in other.ranges)
        ]

    def covered(self, pool: Pool) -> bool:
        """Whether all memory of *pool*, if it has any, is that of pools built before it."""
        before: list[tuple[int, int]] = []
        for other in self._pools.values():
            if other is pool:
                break
            before += other.ranges
        return all(inside(start, before) for start, _ in pool.ranges)

    def newest_pool(self, role: str) -> Pool | None:
        """The pool of *role* with memory that was built last in the cache tree."""
        return next(
            (
                pool
                for pool in reversed(self._pools.values())
                if pool.key.role == role and pool.ranges and pool.key.pool not in OUTSIDE
            ),
            None,
        )

    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    # Registrations

    def registered_overlap(self, address: int, size: int) -> bool:
        """Whether a registered buffer shares bytes with ``[address, address + size)``; the same
        buffer does: only a standalone client takes it twice."""
        return any(
            other < address + size and address < other + length
            for other, (length, _) in self._registered.items()
        )

    def add_registration(self, address: int, size: int, key: RegistrationKey) -> None:
        self._registered[address] = (size, key)

    def remove_registrations(self, addresses: Iterable[int]) -> list[tuple[RegistrationKey, int]]:
        """Forget buffers; the labels under which bytes are gone, and how many."""
        gone: dict[RegistrationKey, int] = {}
        for address in addresses:
            size, key = self._registered.pop(address, (0, None))
            if key is not None:
                gone[key] = gone.get(key, 0) + size
        return list(gone.items())

    def registered_in(self, mode: str) -> list[int]:
        """Addresses of the buffers that are registered in *mode*."""
        return [address for address, (_, key) in self._registered.items() if key.mode == mode]

    def modes(self, key: PoolKey) -> list[str]:
        """The modes in which buffers of *key* are registered now."""
        found = (known for _, known in self._registered.values())
        return sorted({known.mode for known in found if known[1:] == tuple(key)})

    def registered_bytes(self, key: RegistrationKey) -> int:
        return sum(size for size, found in self._registered.values() if found == key)

    # Page-locked memory

    def add_pin(self, address: int, size: int, role: str, pool: str) -> None:
        self._pinned[address] = (size, role, pool)

    def pinned_bytes(self, role: str, pool: str) -> int:
        return sum(size for size, r, p in self._pinned.values() if (r, p) == (role, pool))

    # Failures not yet mended

    def add_failure(self, stage: str, role: str, pool: str, row: FailureRow) -> None:
        self._failures.setdefault((stage, role, pool), set()).add(row)

    def forgive(self, stages: Iterable[str]) -> list[tuple[str, str, str, FailureRow]]:
        """All failures of these stages, as ``(stage, role, pool, row)``; they are forgotten."""
        keys = [key for key in self._failures if key[0] in stages]
        return [(*key, row) for key in keys for row in sorted(self._failures.pop(key))]

    def mend(self, stage: str, role: str, pool: str) -> tuple[FailureRow, ...]:
        """The rows that a success at this stage ends, whatever the store's mode and the pool's
        allocator were when they failed; they are forgotten."""
        return tuple(sorted(self._failures.pop((stage, role, pool), set())))


def _holder(address: int, pools: list[Pool]) -> Pool | None:
    return next((pool for pool in pools if inside(address, pool.ranges)), None)
