"""Segments, pools, registrations: numbers only, by address."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from hicache_obs.ledger import (
    FailureRow,
    Ledger,
    Pool,
    PoolKey,
    Provenance,
    RegistrationKey,
    Segment,
)
from hicache_obs.ranges import merge_ranges

TARGET = PoolKey("target", "kv", "mooncake")
DRAFT = PoolKey("draft", "draft", "default")
AT_TARGET = RegistrationKey("standalone", *TARGET)
AT_DRAFT = RegistrationKey("standalone", *DRAFT)

RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(-1, 20)), max_size=8)


def segment(address: int, size: int, allocator: str = "mooncake") -> Segment:
    return Segment(address, size, allocator, "target", "kv")


def pool(pool_id: int, key: PoolKey, *ranges: tuple[int, int], tokens: int = 8) -> Pool:
    return Pool(pool_id, key, key.allocator, tokens, ranges)


def covered(ranges: tuple[tuple[int, int], ...] | list[tuple[int, int]]) -> set[int]:
    return {byte for start, size in ranges for byte in range(start, start + size)}


# Provenance


def test_null() -> None:
    assert Ledger().provenance(0, 100) == Provenance("null", None)


def test_exact() -> None:
    ledger, known = Ledger(), segment(1000, 100)
    ledger.add_segment(known)
    assert ledger.provenance(1000, 100) == Provenance("exact", known)


def test_part() -> None:
    ledger, known = Ledger(), segment(1000, 100)
    ledger.add_segment(known)
    for address, size in ((1000, 99), (1001, 99), (1050, 1), (1099, 1), (1000, 0)):
        assert ledger.provenance(address, size) == Provenance("part", known)


def test_straddling_is_part() -> None:
    ledger, first, second = Ledger(), segment(1000, 100), segment(1100, 100)
    ledger.add_segment(first)
    ledger.add_segment(second)
    for address, size in ((950, 100), (1000, 101), (1050, 100)):
        assert ledger.provenance(address, size) == Provenance("part", first)
    assert ledger.provenance(1150, 100) == Provenance("part", second)


def test_foreign() -> None:
    ledger = Ledger()
    ledger.add_segment(segment(1000, 100))
    for address, size in ((900, 100), (1100, 100), (1, 1), (1100, 0)):
        assert ledger.provenance(address, size) == Provenance("foreign", None)


def test_no_memory_is_no_segment() -> None:
    ledger = Ledger()
    ledger.add_segment(segment(0, 100))
    ledger.add_segment(segment(1000, 0))
    assert ledger.provenance(50, 10).relation == "foreign"
    assert ledger.provenance(1000, 1).relation == "foreign"


def test_a_new_segment_evicts_what_it_overlaps() -> None:
    ledger = Ledger()
    ledger.add_segment(segment(1000, 100, "default"))
    ledger.add_segment(segment(1100, 100, "default"))
    ledger.add_segment(segment(1300, 100, "default"))
    newer = segment(1050, 200)
    ledger.add_segment(newer)
    assert ledger.provenance(1000, 50).relation == "foreign"
    assert ledger.provenance(1050, 200) == Provenance("exact", newer)
    assert ledger.provenance(1300, 100).relation == "exact"


def test_the_same_address_again_replaces() -> None:
    ledger = Ledger()
    ledger.add_segment(segment(1000, 100, "default"))
    newer = segment(1000, 100, "mooncake")
    ledger.add_segment(newer)
    assert ledger.provenance(1000, 100) == Provenance("exact", newer)


@given(RANGES, st.integers(0, 80), st.integers(0, 30))
def test_provenance_agrees_with_a_scan(
    added: list[tuple[int, int]], address: int, size: int
) -> None:
    ledger = Ledger()
    standing: list[Segment] = []
    for start, length in added:
        new = segment(start, length)
        ledger.add_segment(new)
        if length > 0:
            apart = (old for old in standing if old.end <= start or new.end <= old.address)
            standing = [*apart, new]
    asked = set(range(address, address + max(size, 1)))
    touched = [s for s in standing if asked & set(range(s.address, s.end))]
    relation = "part" if touched else "foreign"
    if any((s.address, s.bytes) == (address, size) for s in standing):
        relation = "exact"
    if address == 0:
        relation = "null"
    found = ledger.provenance(address, size)
    assert found.relation == relation
    assert found.segment is None or found.segment in touched


# Pools


def test_held_is_by_key() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100), (2000, 50), tokens=8))
    ledger.add_pool(pool(2, DRAFT, (3000, 10), tokens=4))
    assert ledger.held(TARGET) == (150, 8)
    assert ledger.held(DRAFT) == (10, 4)
    assert ledger.held(PoolKey("target", "swa", "mooncake")) == (0, 0)


def test_two_pools_of_a_key_add_up() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100), tokens=8))
    ledger.add_pool(pool(2, TARGET, (2000, 100), tokens=8))
    assert ledger.held(TARGET) == (200, 16)


def test_shared_memory_counts_once() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100)))
    ledger.add_pool(pool(2, DRAFT, (1000, 100), (2000, 5)))
    assert ledger.held(TARGET)[0] + ledger.held(DRAFT)[0] == 105


def test_shared_memory_stays_with_the_pool_that_stays() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100)))
    ledger.add_pool(pool(2, DRAFT, (1000, 100)))
    ledger.release_pool(1)
    assert ledger.held(TARGET) == (0, 0)
    assert ledger.held(DRAFT)[0] == 100


@given(st.lists(RANGES, min_size=1, max_size=4))
@example([[(10, 10)], [(10, 5)]])
def test_all_pools_together_hold_each_byte_once(all_ranges: list[list[tuple[int, int]]]) -> None:
    ledger = Ledger()
    for number, ranges in enumerate(all_ranges):
        key = TARGET._replace(pool=str(number))
        ledger.add_pool(pool(number, key, *merge_ranges(ranges)))
    held = sum(ledger.held(TARGET._replace(pool=str(n)))[0] for n in range(len(all_ranges)))
    assert held == len(set().union(*map(covered, all_ranges)))


def test_later_evidence_renames() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100)))
    ledger.rename_pool(1, "draft", "draft_swa")
    ledger.rename_pool(99, "draft", "draft_swa")
    assert ledger.held(PoolKey("draft", "draft_swa", "mooncake")) == (100, 8)
    assert ledger.held(TARGET) == (0, 0)


def test_the_newest_pool_of_a_role_that_has_memory_and_is_in_the_cache_tree() -> None:
    ledger = Ledger()
    assert ledger.newest_pool("target") is None
    for number, key in ((1, TARGET), (2, TARGET._replace(pool="swa")), (3, DRAFT)):
        ledger.add_pool(pool(number, key, (1000 * number, 100)))
    ledger.add_pool(pool(4, TARGET))
    ledger.add_pool(pool(5, TARGET._replace(pool="hisparse"), (9000, 100)))
    newest = ledger.newest_pool("target")
    assert newest is not None
    assert newest.pool_id == 2


def test_releasing_an_unknown_pool() -> None:
    assert Ledger().release_pool(7) is None


def test_a_pool_is_released_once() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100)))
    released = ledger.release_pool(1)
    assert released is not None
    assert released.bytes == 100
    assert ledger.release_pool(1) is None
    assert ledger.pools() == []
    assert ledger.pool(1) is None


# Registrations and page-locked memory


def test_the_same_buffer_twice_counts_once() -> None:
    ledger = Ledger()
    ledger.add_registration(1000, 100, AT_TARGET)
    ledger.add_registration(1000, 100, AT_TARGET)
    ledger.add_registration(2000, 50, AT_TARGET)
    assert ledger.registered_bytes(AT_TARGET) == 150


def test_a_buffer_registered_for_another_moves() -> None:
    ledger = Ledger()
    ledger.add_registration(1000, 100, AT_TARGET)
    ledger.add_registration(1000, 100, AT_DRAFT)
    assert ledger.registered_bytes(AT_TARGET) == 0
    assert ledger.registered_bytes(AT_DRAFT) == 100


def test_overlap_is_with_any_registered_buffer() -> None:
    ledger = Ledger()
    ledger.add_registration(1000, 100, AT_TARGET)
    assert ledger.registered_overlap(1000, 100)
    assert not ledger.registered_overlap(1100, 100)
    assert not ledger.registered_overlap(900, 100)
    assert ledger.registered_overlap(1000, 50)
    assert ledger.registered_overlap(1099, 1)
    assert ledger.registered_overlap(900, 101)


def test_releasing_a_pool_drops_its_registrations() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100)))
    ledger.add_pool(pool(2, DRAFT, (2000, 100)))
    ledger.add_registration(1000, 50, AT_TARGET)
    ledger.add_registration(1050, 50, AT_TARGET)
    ledger.add_registration(1100, 50, AT_TARGET)
    ledger.add_registration(2000, 100, AT_DRAFT)
    ledger.release_pool(1)
    assert ledger.registered_bytes(AT_TARGET) == 50
    assert ledger.registered_bytes(AT_DRAFT) == 100
    assert not ledger.registered_overlap(1010, 1)


def test_a_registration_stays_while_another_pool_holds_the_memory() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100)))
    ledger.add_pool(pool(2, TARGET._replace(pool="swa"), (1000, 100)))
    ledger.add_registration(1000, 100, AT_TARGET)
    ledger.release_pool(2)
    assert ledger.registered_bytes(AT_TARGET) == 100


def test_pinned_bytes_are_by_address() -> None:
    ledger = Ledger()
    ledger.add_pin(1000, 100, "target", "kv")
    ledger.add_pin(1000, 100, "target", "kv")
    ledger.add_pin(2000, 7, "draft", "draft")
    assert ledger.pinned_bytes("target", "kv") == 100
    assert ledger.pinned_bytes("draft", "draft") == 7


def test_releasing_a_pool_drops_its_pins() -> None:
    ledger = Ledger()
    ledger.add_pool(pool(1, TARGET, (1000, 100)))
    ledger.add_pin(1000, 50, "target", "kv")
    ledger.add_pin(1050, 50, "target", "kv")
    ledger.add_pin(1100, 7, "target", "kv")
    ledger.release_pool(1)
    assert ledger.pinned_bytes("target", "kv") == 7


# Failures


def test_a_success_mends_the_failures_of_its_stage_and_pool() -> None:
    ledger = Ledger()
    foreign = FailureRow("standalone", "default", "-1", "foreign_buffer")
    unreachable = foreign._replace(cause="client_unreachable")
    overlap = FailureRow("embedded", "default", "-600", "overlap")
    for row in (foreign, unreachable, foreign):
        ledger.add_failure("registration", "draft", "draft", row)
    ledger.add_failure("registration", "target", "kv", overlap)
    ledger.add_failure("setup", "draft", "draft", foreign)
    mended = ledger.mend("registration", "draft", "draft")
    assert sorted(mended) == [unreachable, foreign]
    assert ledger.mend("registration", "draft", "draft") == ()
    assert ledger.mend("registration", "target", "kv") == (overlap,)


def test_nothing_to_mend() -> None:
    assert Ledger().mend("registration", "draft", "draft") == ()


# Ranges


@given(RANGES)
def test_merged_ranges_cover_the_same_bytes_once(ranges: list[tuple[int, int]]) -> None:
    merged = merge_ranges(ranges)
    assert covered(merged) == covered(ranges)
    assert sum(size for _, size in merged) == len(covered(ranges))
    assert list(merged) == sorted(merged)
    assert all(size > 0 for _, size in merged)


def test_views_are_swallowed_and_neighbours_stay_apart() -> None:
    assert merge_ranges([(100, 50), (100, 100), (150, 50), (200, 50)]) == ((100, 100), (200, 50))
