"""What SGLang's size check does not see, from a fake /proc and /sys, and this machine's."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from hicache_obs.hooks.host_facts import host_facts
from hicache_obs.hooks.limits import Limit

MIB, GIB = 1 << 20, 1 << 30


def tree(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "sys"


@pytest.fixture(autouse=True)
def locked_memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    limit = {"soft": resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit["soft"], limit["soft"]))
    return limit


def test_huge_pages_of_all_sizes(tmp_path: Path) -> None:
    pages = "sys/kernel/mm/hugepages/hugepages"
    files = {
        f"{pages}-2048kB/nr_hugepages": "100\n",
        f"{pages}-2048kB/free_hugepages": "40\n",
        f"{pages}-1048576kB/nr_hugepages": "3\n",
        f"{pages}-1048576kB/free_hugepages": "3\n",
    }
    [told] = host_facts(*tree(tmp_path, files))
    assert told == Limit(200 * MIB + 3 * GIB, 120 * MIB, "hugetlb")


def test_no_huge_pages_are_reserved(tmp_path: Path) -> None:
    files = {"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n"}
    assert host_facts(*tree(tmp_path, files)) == []


def test_locked_memory(tmp_path: Path, locked_memory: dict[str, int]) -> None:
    locked_memory["soft"] = 8 * MIB
    files = {"proc/self/status": "Name:\tpython\nVmLck:\t    1024 kB\n"}
    assert host_facts(*tree(tmp_path, files)) == [Limit(8 * MIB, MIB, "memlock")]


def nodes(count: int) -> dict[str, str]:
    return {
        f"sys/devices/system/node/node{n}/meminfo": f"Node {n} MemTotal:       1048576 kB\n"
        f"Node {n} MemFree:         {(n + 1) * 1024} kB\n"
        for n in range(count)
    }


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        ("0-3", []),
        ("0,2", [Limit(2 * GIB, 2 * GIB - 4 * MIB, "numa")]),
        ("1", [Limit(GIB, GIB - 2 * MIB, "numa")]),
        ("2-3", [Limit(2 * GIB, 2 * GIB - 7 * MIB, "numa")]),
        ("", []),
        ("x-y,,0-99999", []),
    ],
)
def test_numa_nodes_that_are_allowed(tmp_path: Path, allowed: str, told: list[Limit]) -> None:
    files = nodes(4) | {"proc/self/status": f"Mems_allowed_list:\t{allowed}\n"}
    assert host_facts(*tree(tmp_path, files)) == told


def test_nothing_can_be_read(tmp_path: Path) -> None:
    assert host_facts(tmp_path / "none", tmp_path / "nothing") == []


def test_this_machine(locked_memory: dict[str, int]) -> None:
    locked_memory["soft"] = GIB
    told = {limit.limit_source: limit for limit in host_facts()}
    assert told["memlock"].limit_bytes == GIB
    assert all(limit.limit_bytes >= limit.used_bytes >= 0 for limit in told.values())
