"""The fixed draft builder on the real builders, for every storage backend that SGLang names.

What the review of SGLang PR 29823 left open: what happens when the backend is not Mooncake.
Backends whose vendor library cannot be had here are built with their name and not attached.
"""

from __future__ import annotations

from typing import Any

import pytest
from bench.harness import mooncake_path
from conftest import Start, releases

BACKENDS = ("none", "file", "hf3fs", "nixl", "mooncake", "aibrix", "dynamic", "eic", "simm", "mori")
IN_SAMPLE = {("0.5.14", "none"), ("0.5.14", "file"), ("0.5.14", "nixl"), ("0.5.14", "dynamic")}


def cases() -> list[Any]:
    return [
        pytest.param(
            release, backend, marks=() if (release, backend) in IN_SAMPLE else pytest.mark.full
        )
        for release in ("0.5.13", "0.5.14")
        for backend in BACKENDS
    ]


@pytest.mark.parametrize(("release", "backend"), cases())
def test_draft_and_target_get_the_same_allocator(start: Start, release: str, backend: str) -> None:
    attached = backend in ("none", "mooncake")
    run = start(
        release, draft="mha", storage_backend=backend, attach=attached, exit_when_ready=True
    )

    assert run.ready, run.log[-2000:]
    pools = {pool["role"]: pool for pool in run.reports[0]["pools"]}
    assert set(pools) == {"target", "draft"}
    assert pools["draft"]["allocator"] == pools["target"]["allocator"]
    assert all(pool["bytes"] > 0 for pool in pools.values())
    assert run.of("mismatch") == []
    assert run.of("obs_error") == []
    expected = "pending" if backend == "none" else "applied"
    assert run.of("draft_builder")[-1]["state"] == expected


@pytest.mark.parametrize("release", releases("0.5.13", "0.5.14"))
def test_a_mooncake_without_the_allocator_gives_both_the_default(
    start: Start, release: str
) -> None:
    old = mooncake_path("0.3.7.post2")
    run = start(release, draft="mha", paths=[old], attach=False, exit_when_ready=True)

    assert run.ready, run.log[-2000:]
    assert {pool["allocator"] for pool in run.reports[0]["pools"]} == {"HostTensorAllocator"}
    fallbacks = run.of("allocator", reason="import_error", requested="mooncake", actual="default")
    assert [event["role"] for event in fallbacks] == ["target", "draft"]
    assert {event["reason"] for event in run.of("mismatch")} == {"fallback"}


def test_the_fallback_is_told_as_what_the_standalone_store_refuses(start: Start) -> None:
    run = start("0.5.14", draft="mha", paths=[mooncake_path("0.3.7.post2")])

    assert not run.ready
    setup = run.of("setup")
    assert [(event["outcome"], event["cause"]) for event in setup] == [
        ("failure", "allocator_required")
    ]
    assert run.value("hicache_failure_active", stage="setup", cause="allocator_required") == 1
    fallback = {"role": "target", "expected": "mooncake", "actual": "default", "reason": "fallback"}
    assert run.value("hicache_allocator_mismatch", harmful="true", **fallback) == 1
    asked = {"requested": "mooncake", "actual": "default", "reason": "import_error"}
    assert run.value("hicache_allocator_fallbacks_total", **asked) == 1


@pytest.mark.parametrize("release", releases("0.5.15.post1", "0.5.16", "0.5.18", "0.5.23"))
def test_fixed_releases_are_not_touched(start: Start, release: str) -> None:
    kind = "mla" if release == "0.5.23" else "mha"
    ours = start(release, target=kind, draft="mha")
    without = start(release, target=kind, draft="mha", env={"HICACHE_OBS_ENABLED": "0"})

    def pools(reports: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
        return [(p["class"], p["allocator"], p["bytes"]) for p in reports[0]["pools"]]

    assert ours.ready, ours.log[-2000:]
    assert without.ready, without.log[-2000:]
    assert pools(ours.reports) == pools(without.reports)
    assert [event["state"] for event in ours.of("draft_builder")] == ["upstream"]
    assert without.events == []
