"""Each hook is shown by what is missing when it is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, Start
from test_second_plugin import plugin

from hicache_obs.sglang_targets import TARGETS

RELEASE = "0.5.20"
"""The first release in which SGLang destroys draft and target pools at a graceful end."""

WHOLE: dict[str, Any] = {"draft": "mha", "transfer_engine": True, "graceful_exit": True}

MUTANT = """
import hicache_obs.sglang_targets as table

def register():
    table.TARGETS = tuple(t for t in table.TARGETS if t.point != {point!r})
"""

EVIDENCE: dict[str, Callable[[Run], object]] = {
    "worker": lambda run: run.of("worker_ready"),
    "host_pool": lambda run: len(run.of("pool")) == 2,
    "pool_destroy": lambda run: len(run.of("pool_released", how="destroy")) == 2,
    "allocator_choice": lambda run: len(run.of("allocator", actual="mooncake")) == 2,
    "allocate": lambda run: len(run.of("segment", allocator="mooncake")) == 2,
    "pin": lambda run: len(run.of("pin", code="0")) == 2,
    "transfer_engine": lambda run: run.of("transport"),
    "store_init": lambda run: run.of("setup", mode="standalone", outcome="success"),
    "store_warmup": lambda run: run.of("call_returned", api="warmup"),
    "register_anchor": lambda run: run.of("pool_registration", api="register_mem_pool_host"),
    "register_side_pool": lambda run: run.of("pool_registration", pool="draft"),
    "register_buffer": lambda run: len(run.of("registration", code="0")) == 2,
    "attach": lambda run: run.of("attach", backend="mooncake", outcome="success"),
    "draft_builder": lambda run: run.of("draft_builder", state="upstream"),
}


ELSEWHERE = {
    "test_attach.py": {"detach"},
    "test_disaggregation.py": {"decode_offload"},
    "test_pools.py": {"host_backing", "pool_group", "pool_group_entry", "hisparse"},
    "test_provenance.py": {
        *("allocate_pinned", "allocate_hip", "allocate_memfabric"),
        *("hugepages", "hugepages_shm", "pin_inline", "cudart"),
    },
    "test_registration_paths.py": {
        *("te_register", "te_batch_register", "te_unregister", "te_batch_unregister"),
        *("direct_linker", "store_native", "create_backend"),
    },
}
"""Hook points that this start does not pass, and the tests that look at them."""


def test_every_hook_point_has_its_evidence() -> None:
    elsewhere = set().union(*ELSEWHERE.values())
    assert set(EVIDENCE) | elsewhere == {target.point for target in TARGETS}


@pytest.mark.parametrize("point", EVIDENCE)
def test_hook_shows(start: Start, point: str) -> None:
    run = start(RELEASE, **WHOLE)
    assert run.ready, run.log[-2000:]
    assert EVIDENCE[point](run)


@pytest.mark.full
@pytest.mark.parametrize("point", [p for p in EVIDENCE if p != "draft_builder"])
def test_without_the_hook_its_evidence_is_gone(start: Start, tmp_path: Path, point: str) -> None:
    mutant = plugin(tmp_path, "mutant", "mutant:register", MUTANT.format(point=point))
    run = start(RELEASE, **WHOLE, paths=[mutant])
    assert run.ready, run.log[-2000:]
    assert not EVIDENCE[point](run)


def test_without_the_draft_builder_hook_the_draft_is_not_fixed(
    start: Start, tmp_path: Path
) -> None:
    mutant = plugin(tmp_path, "mutant", "mutant:register", MUTANT.format(point="draft_builder"))
    run = start("0.5.14", draft="mha", paths=[mutant])
    assert not run.ready


def test_gauges_of_destroyed_pools_go_down(start: Start) -> None:
    run = start(RELEASE, **WHOLE)
    standing = run.samples("hicache_host_pool_bytes")
    assert [value > 0 for _, _, value in standing] == [True, True]
    for name in ("hicache_host_pool_bytes", "hicache_registered_bytes", "hicache_pool_registered"):
        after = run.samples(name, run.left)
        assert after == [] or [value for _, _, value in after] == [0, 0], name
    released = run.of("pool_released")
    assert {event["role"] for event in released} == {"target", "draft"}
    assert all(event["held_bytes"] == event["registered_bytes"] == 0 for event in released)
