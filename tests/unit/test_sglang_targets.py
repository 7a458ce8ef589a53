"""The table of hook points: each release's rows, each row's observer."""

from __future__ import annotations

import re
from itertools import groupby, pairwise

import pytest

from hicache_obs.hooks.observers import OBSERVERS
from hicache_obs.sglang_targets import RELEASES, TARGETS, release_key, targets_for

COMMON = "sglang.srt.mem_cache.pool_host.common"
BASE = "sglang.srt.mem_cache.pool_host.base"
OLD = "sglang.srt.mem_cache.memory_pool_host"
by_release = pytest.mark.parametrize("release", RELEASES)


def paths(release: str) -> set[str]:
    return {target.path for target in targets_for(release)}


@pytest.mark.parametrize(
    ("release", "key"),
    [
        ("0.5.14", (0, 5, 14)),
        ("0.5.15.post1", (0, 5, 15)),
        ("0.6.0", (0, 6, 0)),
        ("0.5.14rc1", (0, 5, 14)),
        ("0.5.14.dev3+gabc", (0, 5, 14)),
        ("10.20.30", (10, 20, 30)),
    ],
)
def test_release_key(release: str, key: tuple[int, int, int]) -> None:
    assert release_key(release) == key


@pytest.mark.parametrize("text", ["", "0.5", "main", "v0.5.14", "0.5.x"])
def test_no_release(text: str) -> None:
    with pytest.raises(ValueError, match=r"0\.5\.14"):
        release_key(text)


def test_releases_are_in_order() -> None:
    keys = [release_key(release) for release in RELEASES]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize(
    ("release", "as_if"),
    [
        ("0.5.10", "0.5.11"),
        ("0.4.0", "0.5.11"),
        ("0.5.15", "0.5.15.post1"),
        ("0.5.17", "0.5.16"),
        ("0.5.19", "0.5.18"),
        ("0.6.0", "0.5.23"),
        ("1.0.0", "0.5.23"),
        ("nonsense", "0.5.23"),
        ("", "0.5.23"),
    ],
)
def test_a_release_that_is_no_row(release: str, as_if: str) -> None:
    assert targets_for(release) == targets_for(as_if)


def test_0_5_14_moved_the_pools() -> None:
    assert f"{OLD}.HostKVCache.__init__" in paths("0.5.13")
    assert f"{OLD}.get_allocator_from_storage" in paths("0.5.13")
    assert f"{BASE}.HostKVCache.__init__" not in paths("0.5.13")
    assert f"{BASE}.HostKVCache.__init__" in paths("0.5.14")
    assert f"{COMMON}.get_allocator_from_storage" in paths("0.5.14")
    assert f"{COMMON}._cuda_host_register" in paths("0.5.14")
    assert f"{OLD}.HostKVCache.__init__" not in paths("0.5.14")


def test_0_5_15_post1_keeps_what_ends_with_0_5_15() -> None:
    assert f"{OLD}.MLATokenToKVPoolHost.__init__" in paths("0.5.15.post1")
    assert f"{OLD}.MLATokenToKVPoolHost.__init__" not in paths("0.5.16")


def test_the_draft_builder_moved() -> None:
    def builders(release: str) -> list[str]:
        return [t.name for t in targets_for(release) if t.point == "draft_builder"]

    assert builders("0.5.12") == ["Scheduler._maybe_register_hicache_draft"]
    assert builders("0.5.13") == ["maybe_register_hicache_draft"]
    assert builders("0.5.23") == ["maybe_register_hicache_draft"]


def test_every_point_has_an_observer_and_every_observer_a_point() -> None:
    assert {target.point for target in TARGETS} == set(OBSERVERS) | {"cudart"}


@by_release
def test_no_two_targets_share_a_path(release: str) -> None:
    targets = targets_for(release)
    assert len({target.path for target in targets}) == len(targets)


@by_release
def test_a_release_has_every_point_that_all_have(release: str) -> None:
    points = {target.point for target in targets_for(release)}
    later = {
        "pool_destroy": "0.5.14",
        "pin": "0.5.14",
        "pool_group_entry": "0.5.18",
        "host_backing": "0.5.21",
        "hugepages": "0.5.13",
        "hugepages_shm": "0.5.18",
        "allocate_memfabric": "0.5.20",
        "allocate_hip": "0.5.22",
        "direct_linker": "0.5.20",
    }
    gone = {"pin_inline": "0.5.13"}
    expected = {
        point
        for point in OBSERVERS
        if release_key(later.get(point, "0.5.11")) <= release_key(release)
        and release_key(release) <= release_key(gone.get(point, "0.5.23"))
    }
    assert points - {"cudart"} == expected


def test_the_hook_is_on_the_base_that_mooncakestore_calls() -> None:
    for release in RELEASES:
        names = [t.name for t in targets_for(release) if t.point == "register_buffer"]
        assert names == ["MooncakeBaseStore.register_buffer"]


def test_no_target_imports_prometheus_client_at_load() -> None:
    assert not [target for target in TARGETS if "disaggregation.mooncake.conn" in target.module]


def test_rows_are_well_formed() -> None:
    for target in TARGETS:
        assert target.of_vendor or re.fullmatch(r"sglang\.srt(\.\w+)+", target.module)
        assert re.fullmatch(r"\w+(\.\w+)?", target.name)
        assert target.since in RELEASES or target.since == "0.5.15"
        assert not target.until or release_key(target.since) <= release_key(target.until)


def test_a_moved_target_has_no_gap_and_no_overlap() -> None:
    keys = [release_key(release) for release in RELEASES]
    of_sglang = [t for t in TARGETS if not t.of_vendor]
    by_name = sorted(of_sglang, key=lambda t: (t.point, t.name, release_key(t.since)))
    for _, group in groupby(by_name, key=lambda t: (t.point, t.name)):
        rows = list(group)
        for earlier, later in pairwise(rows):
            assert earlier.until
            behind = [key for key in keys if key > release_key(earlier.until)]
            assert behind[0] == release_key(later.since)
