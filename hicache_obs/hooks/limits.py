"""The memory limit that is nearest when a call is about to take memory.

What the kernel's OOM killer goes by: the memory cgroup of this process and its ancestors (v1 and
v2), and the host. Where a container has a cgroup namespace, its own group is the root it sees.
"""

from __future__ import annotations

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
    known = [*_groups(proc, cgroups), *_host(proc)]
    return min(known, key=lambda limit: limit.free, default=Limit())


def _groups(proc: Path, cgroups: Path) -> Iterator[Limit]:
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _tree(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _tree(cgroups / "memory", path, limit, used, "total_inactive_file")


def _tree(root: Path, path: str, limit: str, used: str, cache: str) -> Iterator[Limit]:
    group = root / path.lstrip("/")
    if not group.is_dir():
        group = root
    while True:
        allowed = _number(_text(group / limit))
        if allowed is not None and allowed < _UNLIMITED:
            taken = _number(_text(group / used)) or 0
            yield Limit(allowed, max(0, taken - _cache(group, cache)), "cgroup")
        if group == root or root not in group.parents:
            return
        group = group.parent


def _cache(group: Path, name: str) -> int:
    """File pages that the kernel gives up at once; no part of a working set."""
    for line in _text(group / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value) or 0
    return 0


def _host(proc: Path) -> Iterator[Limit]:
    found = {}
    for line in _text(proc / "meminfo").splitlines()[:8]:
        name, _, value = line.partition(":")
        found[name] = (_number(value.removesuffix("kB")) or 0) * 1024
    total, free = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    if total and free:
        yield Limit(total, total - free, "host")


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _text(path: Path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(65536)
    except (OSError, ValueError):
        return ""
