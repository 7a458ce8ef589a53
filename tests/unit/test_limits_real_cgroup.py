"""Memory limits in a real memory cgroup: what a host pool's request saw, and what is left of a
worker that the OOM killer ended: the call it was in, with the memory limit.

The request alone fits the limit; what is used already makes it too much.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import test_memory_cgroup as oom

from hicache_obs import journal, runs, wire
from hicache_obs.events import CallEntered, LimitSeen

cgroup = oom.cgroup


def test_the_last_line_is_the_call_that_took_too_much(cgroup: Path, tmp_path: Path) -> None:
    request = oom.LIMIT
    done = subprocess.run(
        [sys.executable, "-c", oom.WORKER, str(cgroup / "cgroup.procs"), str(request)],
        env=os.environ | {"HICACHE_OBS_STATE_DIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == -9

    (run,) = runs.list_runs(tmp_path)
    *_, last = journal.read(runs.journal_path(tmp_path, run.text))
    assert isinstance(last, wire.Record)
    entered = last.event
    assert isinstance(entered, CallEntered)
    assert (entered.api, entered.bytes, entered.allocator) == ("allocate", request, "default")
    assert (entered.limit_bytes, entered.limit_source) == (oom.LIMIT, "cgroup")
    assert 0 < entered.used_bytes < oom.LIMIT < entered.used_bytes + request


POOL = """
import os, sys
with open(sys.argv[1], "w") as procs:
    procs.write(str(os.getpid()))
from hicache_obs.hooks.around import around

class HostPool:
    pass

def refuse(pool):
    raise ValueError("Not enough host memory available.")

try:
    around("host_pool")(refuse, HostPool())
except ValueError:
    print("refused")
"""


def test_a_request_that_is_refused_tells_both_limits(cgroup: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", POOL, str(cgroup / "cgroup.procs")],
        env=os.environ | {"HICACHE_OBS_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "refused\n"

    (run,) = runs.list_runs(tmp_path)
    records = journal.read(runs.journal_path(tmp_path, run.text))
    events = [record.event for record in records if isinstance(record, wire.Record)]
    seen = {event.source: event for event in events if isinstance(event, LimitSeen)}
    assert {"psutil", "cgroup"} <= seen.keys() <= {"psutil", "cgroup", "hugetlb", "memlock", "numa"}
    assert seen["cgroup"].limit_bytes == oom.LIMIT
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert seen["psutil"].limit_bytes == total
    for event in (seen["psutil"], seen["cgroup"]):
        assert 0 < event.free_bytes < event.limit_bytes
