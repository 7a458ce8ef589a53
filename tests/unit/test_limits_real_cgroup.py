"""What is left of a worker that the OOM killer ended: the call it was in, with the memory limit.

The request alone fits the limit; what is used already makes it too much.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import test_memory_cgroup as oom

from hicache_obs import journal, runs, wire
from hicache_obs.events import CallEntered

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
