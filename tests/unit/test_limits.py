"""The memory limits and the nearest one, from a fake /proc and /sys, and this machine's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_obs.hooks.limits import Limit, each, nearest

MIB = 1 << 20
GIB = 1 << 30
MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1000 kB\nMemAvailable: 8388608 kB\n"
UNLIMITED = "9223372036854771712"


def tree(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "cgroup").mkdir(exist_ok=True)
    return root / "proc", root / "cgroup"


def v2(path: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    return {
        f"cgroup/{path}memory.max": f"{limit}\n",
        f"cgroup/{path}memory.current": f"{used}\n",
        f"cgroup/{path}memory.stat": f"anon 5\ninactive_file {inactive}\n",
    }


def v1(path: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    return {
        f"cgroup/memory/{path}memory.limit_in_bytes": f"{limit}\n",
        f"cgroup/memory/{path}memory.usage_in_bytes": f"{used}\n",
        f"cgroup/memory/{path}memory.stat": f"inactive_file 1\ntotal_inactive_file {inactive}\n",
    }


HOST = {"proc/meminfo": MEMINFO}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (HOST, Limit(16 * GIB, 8 * GIB, "host")),
        (
            HOST | {"proc/self/cgroup": "0::/a/b\n"} | v2("a/b/", str(4 * GIB), GIB),
            Limit(4 * GIB, GIB, "cgroup"),
        ),
        (
            HOST
            | {"proc/self/cgroup": "0::/a/b\n"}
            | v2("a/b/", "max", GIB)
            | v2("a/", str(5 * GIB), 4 * GIB),
            Limit(5 * GIB, 4 * GIB, "cgroup"),
        ),
        (
            HOST | {"proc/self/cgroup": "0::/a\n"} | v2("a/", str(4 * GIB), 3 * GIB, 2 * GIB),
            Limit(4 * GIB, GIB, "cgroup"),
        ),
        (
            HOST | {"proc/self/cgroup": "0::/a\n"} | v2("a/", str(32 * GIB), GIB),
            Limit(16 * GIB, 8 * GIB, "host"),
        ),
        (
            HOST | {"proc/self/cgroup": "0::/gone/from/here\n"} | v2("", str(2 * GIB), GIB),
            Limit(2 * GIB, GIB, "cgroup"),
        ),
        (
            HOST
            | {"proc/self/cgroup": "9:name=systemd:/\n4:memory:/x/y\n0::/\n"}
            | v1("x/y/", str(4 * GIB), 3 * GIB, GIB),
            Limit(4 * GIB, 2 * GIB, "cgroup"),
        ),
        (
            HOST | {"proc/self/cgroup": "4:cpu,memory:/x\n"} | v1("x/", UNLIMITED, GIB),
            Limit(16 * GIB, 8 * GIB, "host"),
        ),
        (
            HOST
            | {"proc/self/cgroup": "4:memory:/x/y\n"}
            | v1("x/y/", UNLIMITED, GIB)
            | v1("x/", str(2 * GIB), GIB),
            Limit(2 * GIB, GIB, "cgroup"),
        ),
        ({}, Limit()),
        ({"proc/meminfo": "nonsense\n", "proc/self/cgroup": "\n:::\n0::/a\n"}, Limit()),
        (
            HOST | {"proc/self/cgroup": "0::/a\n"} | v2("a/", "9" * 300, 1) | v2("", "ten", 1),
            Limit(16 * GIB, 8 * GIB, "host"),
        ),
        (
            HOST | {"proc/self/cgroup": "0::/größe\n"} | v2("größe/", str(2 * GIB), GIB),
            Limit(2 * GIB, GIB, "cgroup"),
        ),
        (
            HOST | {"proc/self/cgroup": f"0::/{'a' * 300}\n"} | v2("", str(2 * GIB), GIB),
            Limit(2 * GIB, GIB, "cgroup"),
        ),
        (
            HOST
            | {"proc/self/cgroup": "0::/../b\n"}
            | v2("", str(2 * GIB), GIB)
            | v2("../b/", str(GIB), GIB),
            Limit(2 * GIB, GIB, "cgroup"),
        ),
    ],
    ids=[
        "host only",
        "v2",
        "v2 parent",
        "file pages do not count",
        "host is nearer",
        "cgroup namespace",
        "v1 beside v2",
        "v1 unlimited",
        "v1 parent",
        "nothing",
        "nonsense",
        "impossible numbers",
        "name beyond ASCII",
        "name too long",
        "outside its namespace",
    ],
)
def test_the_limit_with_the_fewest_bytes_left(
    files: dict[str, str], told: Limit, tmp_path: Path
) -> None:
    assert nearest(*tree(tmp_path, files)) == told


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (HOST, [Limit(16 * GIB, 8 * GIB, "host")]),
        (
            HOST
            | {"proc/self/cgroup": "0::/a/b\n"}
            | v2("a/b/", str(64 * GIB), GIB)
            | v2("a/", str(32 * GIB), 2 * GIB),
            [Limit(32 * GIB, 2 * GIB, "cgroup"), Limit(16 * GIB, 8 * GIB, "host")],
        ),
        (HOST | v1("", UNLIMITED, GIB), [Limit(16 * GIB, 8 * GIB, "host")]),
        ({}, []),
    ],
    ids=["no cgroup limit", "the nearest of a tree beside the host", "v1 unlimited", "nothing"],
)
def test_one_limit_a_source(files: dict[str, str], told: list[Limit], tmp_path: Path) -> None:
    assert each(*tree(tmp_path, files)) == told


LOCKED_OUT = """
import sys
from pathlib import Path
from hicache_obs.hooks.limits import nearest
drop_root()
print(*nearest(Path(sys.argv[1], "proc"), Path(sys.argv[1], "cgroup")))
"""


def test_groups_that_may_not_be_read_are_left_out(
    open_dir: Path, run_python: Callable[..., str]
) -> None:
    files = HOST | {"proc/self/cgroup": "0::/a/b\n"} | v2("a/b/", "1", 1)
    _, cgroups = tree(open_dir, files | v2("", str(2 * GIB), GIB))
    (cgroups / "a").chmod(0)
    told = run_python(LOCKED_OUT, open_dir)
    (cgroups / "a").chmod(0o700)
    assert told.split() == [str(2 * GIB), str(GIB), "cgroup"]


def test_this_machine_has_a_limit() -> None:
    found = nearest()
    assert found.limit_source in ("host", "cgroup")
    assert 0 < found.used_bytes < found.limit_bytes
