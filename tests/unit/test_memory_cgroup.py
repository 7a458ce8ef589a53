"""A worker that the kernel's OOM killer ends, in a real memory cgroup."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from journals import values

from hicache_obs.exporter.host import Host

MIB = 1 << 20
LIMIT = 256 * MIB
WORKER = """
import mmap, os, sys
with open(sys.argv[1], "w") as procs:
    procs.write(str(os.getpid()))
from hicache_obs.hooks.around import around

class HostTensorAllocator:
    def allocate(self, dims, dtype, device="cpu"):
        memory = mmap.mmap(-1, dims[0])
        for offset in range(0, dims[0], 4096):
            memory[offset] = 1
        return memory

class Byte:
    itemsize = 1

around("allocate")(HostTensorAllocator.allocate, HostTensorAllocator(), (int(sys.argv[2]),), Byte)
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup of ``LIMIT`` bytes without swap, below this process's own (v2 or v1)."""
    for parent, limit, swap in _places():
        group = parent / f"hicache-obs-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
        except OSError:
            group.rmdir()
            continue
        with contextlib.suppress(OSError):
            (group / swap).write_text("0" if swap == "memory.swap.max" else str(LIMIT))
        yield group
        group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here (it takes root and a writable /sys/fs/cgroup)")


def _places() -> Iterator[tuple[Path, str, str]]:
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            for parent in (root / "memory" / path[1:], root / "memory"):
                yield parent, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
        elif number == "0":
            for parent in (root / path[1:], root):
                yield parent, "memory.max", "memory.swap.max"


@pytest.mark.parametrize(
    ("size", "survives"), [(1024 * MIB, False), (32 * MIB, True)], ids=["too much", "enough"]
)
def test_the_oom_killer_is_suspected_where_it_killed(
    size: int, survives: bool, cgroup: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(cgroup / "cgroup.procs"), str(size)],
        env=os.environ | {"HICACHE_OBS_STATE_DIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == (0 if survives else -9)
    host = Host([tmp_path], keep=False)
    host.refresh()
    told = {"stage": "allocation", "allocator": "default", "cause": "oom_suspected"}
    assert values(host, "hicache_failure_active", **told) == ([] if survives else [1])
    if survives:
        return
    (words,) = host.view.snapshot.servers[0].ranks[0].failures
    assert words.bytes == size
    assert f"of {LIMIT} in use (cgroup limit)" in words.error
