"""Every host pool class of every release, built by SGLang's own constructors in CPU memory.

The bench's zoo says what each pool holds by looking at the finished objects; here that is compared
with the journal, and SGLang's behaviour with the plug-in is compared with that without it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench.harness import BENCH, run_python
from conftest import Run, releases

from hicache_obs.sglang_pools import NOT_HOOKED, POOL_CLASSES
from hicache_obs.sglang_targets import targets_for

COMPOSITES = {"HostPoolGroup", "PageInterleaveHostPool"}
"""They hold no memory of their own, and are no pool of ours."""

LABELS = {"HostTensorAllocator": "default", "MooncakeHostTensorAllocator": "mooncake"}


@dataclass
class Zoo:
    """What the program said of the pools, and what was recorded meanwhile."""

    cases: list[dict[str, Any]]
    run: Run

    @property
    def pools(self) -> list[dict[str, Any]]:
        there = [case for case in self.cases if not case.get("absent")]
        return [case for case in there if case["ok"] and case["class"] not in COMPOSITES]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kept: dict[tuple[str, tuple[str, ...]], Zoo] = {}

    def visit(release: str, *options: str) -> Zoo:
        key = (release, options)
        if key not in kept:
            state = tmp_path_factory.mktemp("zoo")
            done = run_python(
                release,
                BENCH / "pool_zoo.py",
                ["--allocator=mooncake", *options],
                env={"HICACHE_OBS_STATE_DIR": str(state)},
            )
            assert done.returncode == 0, done.stderr[-3000:]
            cases = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
            run = Run(True, 0, done.stderr, [], Path(state), "", "")
            kept[key] = Zoo(cases, run)
        return kept[key]

    return visit


@pytest.mark.parametrize("release", releases())
def test_the_zoo_has_every_class_of_the_release(zoo: Any, release: str) -> None:
    built = {case["class"] for case in zoo(release).cases if case.get("ok")}
    hooked = {
        target.name.partition(".")[0]
        for target in targets_for(release)
        if target.point == "host_pool"
    }
    assert hooked - built == {"HostKVCache"}  # abstract
    assert not [case for case in zoo(release).cases if case.get("ok") is False]
    known = {pool.name for pool in POOL_CLASSES} | NOT_HOOKED.keys() | COMPOSITES
    assert built <= known


@pytest.mark.parametrize("release", releases())
def test_sglang_behaves_alike_with_and_without_the_plug_in(zoo: Any, release: str) -> None:
    assert zoo(release, "--plugins").cases == zoo(release).cases
    assert not zoo(release).run.journals
    assert zoo(release, "--plugins").run.of("obs_error") == []


@pytest.mark.parametrize("release", releases())
def test_bytes_and_allocator_of_every_pool(zoo: Any, release: str) -> None:
    seen = zoo(release, "--plugins")
    told = seen.run.of("pool")
    assert [event["pool_class"] for event in told] == [
        case["class"] if case["class"] != "PageInterleaveHostPool" else "MHATokenToKVPoolHost"
        for case in seen.cases
        if case.get("ok") and case["class"] != "HostPoolGroup"
    ]
    told = [event for event, case in zip(told, built(seen), strict=True) if case in seen.pools]
    for event, case in zip(told, seen.pools, strict=True):
        assert event["bytes"] == case["bytes_reached"], case["case"]
        assert event["tokens"] == case["size"], case["case"]
        assert event["layout"] == (case["layout"] or ""), case["case"]
        allocator = LABELS[case["allocator"]] if case["allocator"] else "other"
        assert event["allocator"] == allocator, case["case"]
        assert event["outcome"] == "success"
    held = {
        (event["pool"], event["allocator"]): event["held_bytes"] for event in seen.run.of("pool")
    }
    assert sum(held.values()) == sum(
        case["bytes"] for case in seen.cases if case.get("ok")
    )  # memory shared by two pools counts once


def built(seen: Zoo) -> list[dict[str, Any]]:
    return [case for case in seen.cases if case.get("ok") and case["class"] != "HostPoolGroup"]


@pytest.mark.parametrize("release", releases())
def test_pinned_bytes_are_those_of_the_pools(zoo: Any, release: str) -> None:
    seen = zoo(release, "--plugins")
    pinned = {event["pool"]: event["pinned_bytes"] for event in seen.run.of("pin")}
    assert sum(pinned.values()) == sum(case["pinned"] for case in seen.cases if case.get("ok"))


@pytest.mark.parametrize("release", releases())
def test_destroyed_pools_leave_nothing(zoo: Any, release: str) -> None:
    """Up to 0.5.13 no pool can be destroyed; there the end of the process is the pools' end."""
    seen = zoo(release, "--plugins")
    gone = seen.run.of("pool_released", how="destroy")
    destroyed = [case for case in built(seen) if case["destroyed"]]
    assert len(gone) == len(destroyed)
    if destroyed == built(seen):
        last: dict[str, tuple[int, ...]] = {}
        for event in seen.run.events:
            if event["kind"] in ("pool", "pool_named", "pool_released"):
                held, pinned = event["held_bytes"], event.get("pinned_bytes", 0)
                last[event["pool"]] = (held, event["held_tokens"], pinned)
        assert set(last.values()) == {(0, 0, 0)}, last


@pytest.mark.parametrize("release", releases("0.5.18", "0.5.23", sample=("0.5.23",)))
def test_packed_draft_layers(zoo: Any, release: str) -> None:
    seen = zoo(release, "--plugins", "--only", "packed-draft")
    [told] = seen.run.of("pool")
    [case] = [case for case in seen.cases if case["case"] == "packed-draft"]
    assert told["draft_layers"] == case["layers"] - case["target_layers"] > 0
    assert told["role"] == "target"


def test_shared_memory_goes_over_to_the_pool_that_stays(zoo: Any) -> None:
    seen = zoo("0.5.23", "--plugins", "--only", "unified-full", "unified-swa")
    full, swa = seen.run.of("pool", pool_class="UnifiedPageEnvelopeHostPool")
    assert (full["pool"], swa["pool"]) == ("kv", "swa")
    assert full["held_bytes"] == full["bytes"] == swa["bytes"]
    assert swa["held_bytes"] == 0
    first, second = seen.run.of("pool_released")
    assert (first["pool"], first["held_bytes"], first["pinned_bytes"]) == ("kv", 0, 0)
    [heir] = seen.run.of("pool_named", pool="swa")
    assert heir["held_bytes"] == heir["pinned_bytes"] == swa["bytes"]
    assert (second["pool"], second["held_bytes"], second["pinned_bytes"]) == ("swa", 0, 0)
