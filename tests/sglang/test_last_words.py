"""A worker that dies before its first scrape is still seen: by the exporter, from its journal."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from bench.harness import Mooncake, start_server
from conftest import Start
from journals import served, starts, values
from test_second_plugin import plugin

from hicache_obs.exporter.host import Host

FAILURE = "hicache_failure_active"
STARTS = "hicache_worker_starts_total"
UNFIXED = {"HICACHE_OBS_DRAFT_FIX": "off"}
LEAVES = """
import os, signal
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

STORE = "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store"

def leave(original, store, tensor):
    {what}

def register():
    HookRegistry.register(STORE + ".MooncakeBaseStore.register_buffer", leave, HookType.AROUND)
"""
NEVER_SET_UP = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

STORE = "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store"

def setup(original, store, *args, **kwargs):
    original(store, *args, **kwargs)
    from mooncake.store import MooncakeDistributedStore
    store.store = MooncakeDistributedStore()

def register():
    HookRegistry.register(STORE + ".MooncakeStore.__init__", setup, HookType.AROUND)
"""


def look(state_dir: Path) -> Host:
    """What an exporter serves that was not there when it happened: after the last rank's death,
    which may come a moment after its server's."""
    host = Host([state_dir], keep=False)
    until = time.monotonic() + 30
    host.refresh()
    while 1 in values(host, "hicache_worker_up"):
        assert time.monotonic() < until
        time.sleep(0.1)
        host.refresh()
    return host


def active(host: Host) -> list[dict[str, str]]:
    return [dict(labels) for labels, value in served(host).get(FAILURE, {}).items() if value]


def test_the_bug_is_served_after_the_death(start: Start) -> None:
    run = start("0.5.14", draft="mha", env=UNFIXED)

    assert run.returncode < 0
    host = look(run.state_dir)
    (failure,) = active(host)
    told = {"stage": "registration", "mode": "standalone", "role": "draft", "code": "-1"}
    told |= {"allocator": "default", "cause": "foreign_buffer", "tp_rank": "0"}
    assert told.items() <= failure.items()
    assert values(host, "hicache_allocator_mismatch", harmful="true", role="draft") == [1]
    assert values(host, "hicache_registrations_total", outcome="failure") == [1]
    assert starts(host, outcome="failure", cause="foreign_buffer") == [1]
    assert values(host, "hicache_worker_up") == [0]
    (server,) = host.view.snapshot.servers
    (rank,) = server.ranks
    (words,) = rank.failures
    assert (words.bytes, words.error_type) == (1114112, "RuntimeError")
    assert words.error == "Failed to register buffer to Mooncake Store, error code: -1"
    assert (rank.sglang_version, rank.mooncake_version) == ("0.5.14", "0.3.13.post1")


def test_the_fixed_start_that_follows_ends_it(mooncake: Mooncake, tmp_path: Path) -> None:
    """The same port, first without the fix, then with it; one exporter sees both."""
    state = tmp_path / "state"
    host = Host([state], keep=False)
    env = {"HICACHE_OBS_STATE_DIR": str(state)}
    how = {"draft": "mha", "server_port": 31000, "metrics": False}
    unfixed = {**env, **UNFIXED}
    with start_server("0.5.14", mooncake, unfixed, folder=tmp_path / "unfixed", **how) as server:
        server.wait(120)
    host.refresh()
    assert [failure["cause"] for failure in active(host)] == ["foreign_buffer"]
    with start_server("0.5.14", mooncake, env, folder=tmp_path / "fixed", **how) as server:
        server.wait_ready(120)
        host.refresh()
        assert active(host) == []
        assert values(host, "hicache_pool_registered", role="draft") == [1]
        assert values(host, "hicache_worker_up") == [1]
        assert values(host, "hicache_registrations_total", outcome="failure") == [1]
        assert server.terminate() == 0
    host.refresh()
    assert active(host) == []
    assert values(host, "hicache_worker_up") == [0]
    assert values(host, "hicache_host_pool_bytes") == []
    assert sorted(starts(host)) == [1, 1]


@pytest.mark.parametrize(
    "what",
    [
        "os._exit(3)",
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", marks=pytest.mark.full),
    ],
    ids=["_exit", "SIGKILL"],
)
def test_a_process_that_leaves_in_the_middle(what: str, start: Start, tmp_path: Path) -> None:
    leaves = plugin(tmp_path, "leaves", "leaves:register", LEAVES.format(what=what))
    run = start("0.5.14", draft="mha", paths=[leaves])

    assert not run.ready
    host = look(run.state_dir)
    (failure,) = active(host)
    assert failure["cause"] == "crashed_in_call"
    assert (failure["stage"], failure["role"]) == ("registration", "target")
    assert starts(host, outcome="failure") == [1]


@pytest.mark.full
def test_a_process_that_is_told_to_exit_has_not_failed(start: Start, tmp_path: Path) -> None:
    code = LEAVES.format(what="raise SystemExit(3)")
    run = start("0.5.14", draft="mha", paths=[plugin(tmp_path, "leaves", "leaves:register", code)])

    assert not run.ready
    host = look(run.state_dir)
    assert active(host) == []
    assert starts(host) == starts(host, outcome="interrupted") == [1]


def test_a_real_segmentation_fault_in_register_buffer(start: Start, tmp_path: Path) -> None:
    """Mooncake's own: a store that was never set up, asked to register."""
    run = start("0.5.14", paths=[plugin(tmp_path, "unset", "unset:register", NEVER_SET_UP)])

    assert not run.ready
    last = run.events[-1]
    assert (last["kind"], last["api"], last["role"]) == (
        "call_entered",
        "register_buffer",
        "target",
    )
    host = look(run.state_dir)
    (failure,) = active(host)
    told = {"cause": "crashed_in_call", "stage": "registration", "code": "", "mode": "standalone"}
    assert (told | {"role": "target", "allocator": "mooncake"}).items() <= failure.items()
    (words,) = host.view.snapshot.servers[0].ranks[0].failures
    assert words.bytes == last["bytes"] > 0


def test_the_rank_that_failed_and_its_peers(start: Start) -> None:
    run = start("0.5.14", draft="mha", ranks=2, env=UNFIXED)

    host = look(run.state_dir)
    counts = served(host)[STARTS].items()
    causes = sorted(dict(labels)["cause"] for labels, value in counts for _ in range(int(value)))
    raised = len(run.of("registration", outcome="failure"))
    assert raised >= 1
    assert causes == sorted(["foreign_buffer"] * raised + ["peer"] * (2 - raised))
    assert len(active(host)) == raised


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
def test_killed_at_any_moment_what_was_raised_is_served_once(
    seed: int, mooncake: Mooncake, tmp_path: Path
) -> None:
    """SIGKILL to the whole tree around the failing call."""
    state = tmp_path / "state"
    env = {"HICACHE_OBS_STATE_DIR": str(state), **UNFIXED}
    how = {"draft": "mha", "metrics": False}
    with start_server("0.5.14", mooncake, env, folder=tmp_path / "server", **how) as server:
        until = time.monotonic() + 120
        while "hicache-obs: the draft host pool" not in server.log:
            assert time.monotonic() < until, server.log[-2000:]
            time.sleep(0.001)
        time.sleep(random.Random(seed).uniform(0, 0.02))
        server.kill()
        log = server.log
    raised = len(re.findall(r"hicache-obs: registration of the draft host pool", log))
    host = look(state)
    assert len([f for f in active(host) if f["cause"] == "foreign_buffer"]) in {raised, 1}
    assert len(active(host)) <= 1
    assert values(host, "hicache_allocator_mismatch", harmful="true") == [1]
    total = sum(values(host, "hicache_registrations_total", outcome="failure"))
    assert total in {raised, 1}
    assert total >= raised
