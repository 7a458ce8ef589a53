"""Memory limits, read when a call is about to take memory.

What the kernel's OOM killer goes by: the memory cgroup of this process and its ancestors (v1 and
v2), and the host. Where a container has a cgroup namespace, its own group is the root it sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number about 2**63."""


class Limit(NamedTuple):
    """Bytes allowed and used, and who allows them: ``cgroup`` or ``host``; "" if not known."""

    limit_bytes: int = 0
    used_bytes: int = 0
    limit_source: str = ""

    @property
    def free(self) -> int:
        return self.limit_bytes - self.used_bytes


def nearest(proc: Path = PROC, cgroups: Path = CGROUPS) -> Limit:
    """The limit with the fewest bytes left."""
    return min(each(proc, cgroups), key=_free, default=Limit())


def each(proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Limit]:
    """The memory cgroup's limit (the nearest of its tree) and the host's, as far as there are
    any. What cannot be read is left out; it never raises."""
    groups = sorted(_groups(proc, cgroups), key=_free)
    return [*groups[:1], *_host(proc)]


def _free(limit: Limit) -> int:
    return limit.free


def _groups(proc: Path, cgroups: Path) -> Iterator[Limit]:
    for line in text(f"{proc}/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _tree(f"{cgroups}", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _tree(f"{cgroups}/memory", path, limit, used, "total_inactive_file")


def _tree(root: str, path: str, limit: str, used: str, cache: str) -> Iterator[Limit]:
    """The limits of the group at *path* and of its ancestors, as far as *root* shows them."""
    names = [name for name in path.split("/") if name]
    if ".." in names or not os.path.isdir("/".join((root, *names))):
        names = []
    for depth in range(len(names), -1, -1):
        group = "/".join((root, *names[:depth]))
        allowed = number(text(f"{group}/{limit}"))
        if allowed is not None and allowed < _UNLIMITED:
            taken = number(text(f"{group}/{used}")) or 0
            yield Limit(allowed, max(0, taken - _cache(group, cache)), "cgroup")


def _cache(group: str, name: str) -> int:
    """File pages that the kernel gives up at once; no part of a working set."""
    _, _, rest = ("\n" + text(f"{group}/memory.stat")).partition(f"\n{name} ")
    return number(rest.partition("\n")[0]) or 0


def _host(proc: Path) -> Iterator[Limit]:
    found = {}
    for line in text(f"{proc}/meminfo").splitlines()[:8]:
        name, _, value = line.partition(":")
        found[name] = (number(value.removesuffix("kB")) or 0) * 1024
    total, free = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    if total and free:
        yield Limit(total, total - free, "host")


def number(written: str) -> int | None:
    digits = written.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def text(path: str) -> str:
    """What a small file holds, by one read (half the cost of a text file's); names of groups
    may hold any byte."""
    try:
        with open(path, "rb", buffering=0) as file:
            return os.fsdecode(file.read(65536))
    except (OSError, ValueError):
        return ""
