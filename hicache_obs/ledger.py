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

    # Pools

    def add_pool(self, pool: Pool) -> None:
        self._pools[pool.pool_id] = pool

    def pool(self, pool_id: int) -> Pool | None:
        return self._pools.get(pool_id)

    def release_pool(self, pool_id: int) -> Pool | None:
        """Forget a pool and the registrations of its buffers; None if it is not known."""
        pool = self._pools.pop(pool_id, None)
        if pool is None:
            return None
        held = [r for other in self._pools.values() for r in other.ranges]
        for address in [a for a in self._registered if _gone(a, pool.ranges, held)]:
            del self._registered[address]
        for address in [a for a in self._pinned if _gone(a, pool.ranges, held)]:
            del self._pinned[address]
        return pool

    def rename_pool(self, pool_id: int, role: str, pool: str) -> None:
        """Later evidence of role and name wins (the PoolName given at registration)."""
        known = self._pools.get(pool_id)
        if known is None:
            return
        known.key = known.key._replace(role=role, pool=pool)
        for address, (size, _, _) in list(self._pinned.items()):
            if _inside(address, known.ranges):
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

    def newest_pool(self, role: str) -> Pool | None:
        """The pool of *role* that was built last."""
        return next((p for p in reversed(self._pools.values()) if p.key.role == role), None)

    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    # Registrations

    def registered_overlap(self, address: int, size: int) -> bool:
        """Whether another registered buffer shares bytes with ``[address, address + size)``."""
        return any(
            other < address + size and address < other + length
            for other, (length, _) in self._registered.items()
            if (other, length) != (address, size)
        )

    def add_registration(self, address: int, size: int, key: RegistrationKey) -> None:
        self._registered[address] = (size, key)

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

    def mend(self, stage: str, role: str, pool: str) -> tuple[FailureRow, ...]:
        """The rows that a success at this stage ends, whatever the store's mode and the pool's
        allocator were when they failed; they are forgotten."""
        return tuple(sorted(self._failures.pop((stage, role, pool), set())))


def _gone(address: int, ranges: tuple[tuple[int, int], ...], held: list[tuple[int, int]]) -> bool:
    """Whether *address* lies in *ranges* and in nothing that is still *held*."""
    return _inside(address, ranges) and not _inside(address, held)


def _inside(address: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(start <= address < start + size for start, size in ranges)


def merge_ranges(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """``(address, bytes)`` ranges without those that lie inside another (views)."""
    merged: list[tuple[int, int]] = []
    for start, size in sorted(set(ranges), key=lambda r: (r[0], -r[1])):
        if size <= 0 or start == 0:
            continue
        if merged and start < merged[-1][0] + merged[-1][1]:
            last, length = merged[-1]
            merged[-1] = (last, max(length, start + size - last))
        else:
            merged.append((start, size))
    return tuple(merged)
