"""The cause of each refusal, on the real MooncakeStore with the real clients."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from bench.harness import Mooncake, run_python

PRELUDE = """
import json, os, sys, types
from sglang.srt.plugins import load_plugins
load_plugins()
import torch
from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store as ms
from sglang.srt.mem_cache.hicache_storage import PoolName

extra = json.loads(os.environ["EXTRA_CONFIG"])
class StorageConfig(types.SimpleNamespace):
    def __getattr__(self, name):
        return 1 if name.endswith("_size") else 0

config = StorageConfig(
    extra_config=extra, tp_size=1, tp_rank=0, pp_rank=0, pp_size=1, attn_cp_rank=0,
    attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False, should_split_heads=False,
    tp_lcm_size=1,
)
allocator = ms.MooncakeHostTensorAllocator()
anchor = allocator.allocate((1 << 20,), torch.uint8, "cpu")
pool = types.SimpleNamespace(allocator=allocator, kv_buffer=anchor, page_size=64)

def attempt(call, *args):
    try:
        call(*args)
    except BaseException as error:
        return type(error).__name__, str(error)
    return "", ""

store = ms.MooncakeStore(config, pool)
register = store.register_buffer
"""


def registrations(
    code: str, extra: dict[str, Any], folder: Path, release: str = "0.5.14", **env: str
) -> list[dict[str, Any]]:
    """Run *code* after the store is set up; the registration events of the child."""
    environment = {
        "HICACHE_OBS_STATE_DIR": str(folder),
        "EXTRA_CONFIG": json.dumps(extra),
        **env,
    }
    done = run_python(
        release, PRELUDE + code + "\nsys.stdout.flush(); os._exit(0)\n", env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["kind"] == "registration"]


def told(events: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(event["outcome"], event["code"], event["cause"]) for event in events]


def test_standalone_refusals(mooncake: Mooncake, tmp_path: Path) -> None:
    code = """
attempt(register, anchor)
attempt(register, anchor)
attempt(register, anchor[: 1 << 19])
attempt(register, torch.empty(4096, dtype=torch.uint8))
attempt(register, (anchor, anchor))
attempt(register, None)
attempt(register, object())
store.store = None
attempt(register, anchor)
"""
    events = registrations(code, mooncake.extra_config(), tmp_path)
    assert told(events) == [
        ("success", "0", ""),
        ("success", "0", ""),
        ("failure", "-1", "segment_size_mismatch"),
        ("failure", "-1", "foreign_buffer"),
        ("failure", "", "unsupported_buffer_shape"),
        ("failure", "", "unsupported_buffer_shape"),
        ("failure", "", "unsupported_buffer_shape"),
        ("failure", "", "not_initialized"),
    ]
    assert [event["registered_bytes"] for event in events[:2]] == [1 << 20, 1 << 20]
    assert {event["role"] for event in events} == {"none"}


def test_embedded_overlap(mooncake: Mooncake, tmp_path: Path) -> None:
    code = """
memory = torch.empty(1 << 20, dtype=torch.uint8)
attempt(register, memory)
attempt(register, memory[4096 : 1 << 19])
"""
    events = registrations(code, mooncake.extra_config(standalone=False), tmp_path)
    assert told(events) == [("success", "0", ""), ("failure", "-600", "overlap")]


def test_a_client_that_died_after_the_set_up(tmp_path: Path) -> None:
    with Mooncake(tmp_path / "mooncake") as own:
        code = """
import signal, time
second = allocator.allocate((1 << 20,), torch.uint8, "cpu")
os.kill(int(os.environ["CLIENT_PID"]), signal.SIGKILL)
time.sleep(0.5)
attempt(register, second)
"""
        pid = str(own.client_pid)
        events = registrations(code, own.extra_config(), tmp_path / "state", CLIENT_PID=pid)
    assert told(events) == [("failure", "-1", "client_unreachable")]


@pytest.mark.parametrize("release", ["0.5.14", pytest.param("0.5.23", marks=pytest.mark.full)])
def test_the_outcome_is_sglangs_own(mooncake: Mooncake, tmp_path: Path, release: str) -> None:
    code = """
outcomes = [attempt(register, what) for what in (
    anchor, torch.empty(4096, dtype=torch.uint8), (anchor,), None, object(),
    torch.empty(0, dtype=torch.uint8))]
outcomes.append(attempt(store.register_mem_host_pool_v2, object(), PoolName.DRAFT))
outcomes.append(attempt(store.register_mem_pool_host, types.SimpleNamespace(kv_buffer=None)))
outcomes.append(attempt(register))
outcomes.append(attempt(allocator.allocate, (-1,), torch.uint8))
open(os.environ["OUT"], "w").write(json.dumps(outcomes))
"""
    found = []
    for enabled in ("1", "0"):
        out = tmp_path / f"out-{enabled}"
        env = {"OUT": str(out), "HICACHE_OBS_ENABLED": enabled}
        registrations(code, mooncake.extra_config(), tmp_path / enabled, release, **env)
        found.append(json.loads(re.sub(r"0x[0-9a-f]+", "0x", out.read_text())))
    assert found[0] == found[1]
    assert [kind for kind, _ in found[0]].count("") >= 2
