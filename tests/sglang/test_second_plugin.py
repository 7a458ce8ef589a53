"""A second plug-in on the same targets, loaded before or after ours, on a real start."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from conftest import Run, Start

from hicache_obs.sglang_targets import targets_for

SECOND = """
import json, os
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

TARGETS = {targets!r}

def count(target):
    def hook(original, *args, **kwargs):
        with open(os.environ["SECOND_LOG"], "a") as log:
            log.write(json.dumps(target) + "\\n")
        return original(*args, **kwargs)
    return hook

def register():
    for target in TARGETS:
        HookRegistry.register(target, count(target), HookType.AROUND)
    if os.environ.get("SECOND_EAGER"):
        HookRegistry.apply_hooks()
"""


def plugin(folder: Path, name: str, entry_point: str, module: str = "") -> Path:
    """A folder that Python sees as an installed distribution with one SGLang plug-in."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {entry_point}\n")
    if module:
        (folder / f"{name}.py").write_text(module)
    return folder


@pytest.fixture(scope="module")
def baseline(start: Start) -> Run:
    return start("0.5.14", draft="mha")


@pytest.mark.parametrize("order", ["before", "after", "eager"])
def test_both_observe_each_call_once(
    start: Start, baseline: Run, tmp_path: Path, order: str
) -> None:
    # The registry imports what it is given: not the vendors' packages, one of which is not here.
    paths = sorted(t.path for t in targets_for("0.5.14") if not t.of_vendor)
    second = plugin(tmp_path / "second", "second", "second:register", SECOND.format(targets=paths))
    ours = plugin(tmp_path / "ours", "hicache_obs", "hicache_obs.plugin:register")
    folders = [ours, second] if order == "after" else [second, ours]
    log = tmp_path / "calls"
    env = {"SECOND_LOG": str(log)} | ({"SECOND_EAGER": "1"} if order == "eager" else {})

    run = start("0.5.14", draft="mha", env=env, paths=folders)

    assert run.ready, run.log[-2000:]
    assert "Failed to apply hooks" not in run.log
    calls = Counter(json.loads(line) for line in log.read_text().splitlines())
    naturally = {
        "sglang.srt.managers.scheduler.Scheduler.__init__": 1,
        "sglang.srt.mem_cache.kv_cache_builder.maybe_register_hicache_draft": 1,
        "sglang.srt.mem_cache.pool_host.base.HostKVCache.__init__": 2,
        "sglang.srt.mem_cache.memory_pool_host.MHATokenToKVPoolHost.__init__": 2,
        "sglang.srt.mem_cache.pool_host.common.get_allocator_from_storage": 2,
        "sglang.srt.mem_cache.pool_host.common._cuda_host_register": 2,
    }
    for target, number in naturally.items():
        assert calls[target] == number, target
    store = "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store."
    assert calls[store + "MooncakeBaseStore.register_buffer"] == 2
    assert calls[store + "MooncakeStore.__init__"] == 1
    kinds = ("segment", "pool", "pin", "registration", "setup", "worker_ready", "pool_registration")
    for kind in kinds:
        assert len(run.of(kind)) == len(baseline.of(kind)), kind
    assert run.of("hooks")[-1]["missing"] == []


def test_alone_we_are_called_once_too(baseline: Run) -> None:
    assert [len(baseline.of(kind)) for kind in ("pool", "registration", "setup")] == [2, 2, 1]
