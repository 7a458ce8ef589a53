"""What SGLang's size check does not see: huge pages, the limit of locked memory, NUMA nodes.

Read when a host pool is requested, beside the limits of ``limits`` (which the check may see, and
by which the kernel's OOM killer goes). Not among those: none of these kills a process.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from hicache_obs.hooks.limits import PROC, Limit, number, text

SYS = Path("/sys")
_LOCKED = "VmLck:"
_ALLOWED = "Mems_allowed_list:"


def host_facts(proc: Path = PROC, system: Path = SYS) -> list[Limit]:
    """``hugetlb``: bytes of reserved huge pages and those in use. ``memlock``: RLIMIT_MEMLOCK and
    what is locked under it; nothing where it is unlimited. ``numa``: memory of the nodes that
    this process may use, and what is used of it; nothing where it may use all.

    What cannot be read is left out; it never raises.
    """
    return [*_hugetlb(system), *_memlock(proc), *_numa(proc, system)]


def _hugetlb(system: Path) -> Iterator[Limit]:
    total = used = 0
    for name in _names(f"{system}/kernel/mm/hugepages"):
        size = number(name.removeprefix("hugepages-").removesuffix("kB")) or 0
        pool = f"{system}/kernel/mm/hugepages/{name}"
        pages = number(text(f"{pool}/nr_hugepages")) or 0
        free = number(text(f"{pool}/free_hugepages")) or 0
        total += pages * size * 1024
        used += max(0, pages - free) * size * 1024
    if total:
        yield Limit(total, used, "hugetlb")


def _memlock(proc: Path) -> Iterator[Limit]:
    allowed, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if allowed != resource.RLIM_INFINITY:
        yield Limit(
            allowed, (number(_status(proc, _LOCKED).removesuffix("kB")) or 0) * 1024, "memlock"
        )


def _numa(proc: Path, system: Path) -> Iterator[Limit]:
    nodes = [name for name in _names(f"{system}/devices/system/node") if name[4:].isdigit()]
    allowed = _numbers(_status(proc, _ALLOWED))
    usable = [name for name in nodes if int(name[4:]) in allowed]
    if not usable or len(usable) == len(nodes):
        return
    total = free = 0
    for name in usable:
        for line in text(f"{system}/devices/system/node/{name}/meminfo").splitlines()[:2]:
            key, _, value = line.partition(":")
            found = (number(value.removesuffix("kB")) or 0) * 1024
            total += found if key.endswith("MemTotal") else 0
            free += found if key.endswith("MemFree") else 0
    yield Limit(total, total - free, "numa")


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _status(proc: Path, key: str) -> str:
    _, _, rest = ("\n" + text(f"{proc}/self/status")).partition(f"\n{key}")
    return rest.partition("\n")[0].strip()


def _numbers(listed: str) -> set[int]:
    """``0-2,5`` as a set."""
    found: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        start, end = number(first), number(last or first)
        if start is not None and end is not None and end - start < 4096:
            found |= set(range(start, end + 1))
    return found
