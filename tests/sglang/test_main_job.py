"""The main job on the real SGLang: what a start leaves in the metrics and in the journal."""

from __future__ import annotations

import subprocess

import pytest
from conftest import Run, Start, releases

OFF = {"HICACHE_OBS_DRAFT_FIX": "off"}
AFFECTED = ("0.5.13", "0.5.14")
LATENT = ("0.5.11", "0.5.12")
UPSTREAM = ("0.5.15.post1", "0.5.16", "0.5.18", "0.5.20")
HALF_SEGMENT = ("0.5.21", "0.5.22", "0.5.23")


def failures(run: Run) -> list[dict[str, str]]:
    return [labels for _, labels, value in run.samples("hicache_failure_active") if value == 1]


def mismatches(run: Run) -> list[dict[str, str]]:
    return [labels for _, labels, value in run.samples("hicache_allocator_mismatch") if value == 1]


@pytest.mark.parametrize("release", releases(*AFFECTED))
def test_unfixed_draft_kills_the_server_and_its_cause_is_told(start: Start, release: str) -> None:
    run = start(release, draft="mha", env=OFF)

    assert not run.ready
    assert run.returncode < 0, "SGLang kills its process tree"
    draft = {"role": "draft", "pool": "draft", "allocator": "default", "mode": "standalone"}
    told = {"code": "-1", "cause": "foreign_buffer"}
    registered = {"outcome": "failure", "api": "register_buffer", "size_class": "2MiB"}
    assert run.value("hicache_registrations_total", **draft, **told, **registered) == 1
    assert run.value("hicache_failure_active", stage="registration", **draft, **told) == 1
    mismatch = {"role": "draft", "expected": "mooncake", "actual": "default"}
    reason = {"reason": "draft_differs_from_target", "harmful": "true"}
    assert run.value("hicache_allocator_mismatch", **mismatch, **reason) == 1
    assert run.value("hicache_draft_builder_info", state="off") == 1
    ended = {"outcome": "failure", "stage": "registration", "cause": "foreign_buffer"}
    assert run.value("hicache_worker_starts_total", **ended) == 1
    assert run.value("hicache_registered_bytes", **draft) == 0
    assert run.value("hicache_registration_last_failure_bytes", **draft) == 1114112


@pytest.mark.parametrize("release", releases(*AFFECTED))
def test_mismatch_is_known_before_the_registration_runs(start: Start, release: str) -> None:
    events = start(release, draft="mha", env=OFF).events
    mismatch = next(e["seq"] for e in events if e["kind"] == "mismatch")
    entered = next(
        e["seq"]
        for e in events
        if e["kind"] == "call_entered" and e["role"] == "draft" and e["api"] == "register_buffer"
    )
    assert mismatch < entered


@pytest.mark.parametrize("release", releases(*AFFECTED))
def test_fixed_draft_registers_and_nothing_is_amiss(start: Start, release: str) -> None:
    run = start(release, draft="mha")

    assert run.ready, run.log[-2000:]
    assert run.returncode == 0
    assert {pool["allocator"] for pool in run.reports[0]["pools"]} == {
        "MooncakeHostTensorAllocator"
    }
    assert failures(run) == []
    assert run.samples("hicache_allocator_mismatch") == []
    assert run.value("hicache_draft_builder_info", state="applied") == 1
    assert run.value("hicache_draft_builder_info", state="pending") == 0
    for role, pool, size in (("target", "kv", 4325376), ("draft", "draft", 1114112)):
        labels = {"role": role, "pool": pool, "allocator": "mooncake"}
        assert run.value("hicache_host_pool_bytes", **labels) == size
        assert run.value("hicache_registered_bytes", mode="standalone", **labels) == size
        assert run.value("hicache_pool_expected", role=role, pool=pool) == 1
        assert run.value("hicache_pool_registered", role=role, pool=pool) == 1
        assert run.value("hicache_host_pool_info", bytes=str(size), **labels) == 1


@pytest.mark.parametrize("release", releases(*LATENT))
def test_latent_draft_is_left_alone_and_harmless(start: Start, release: str) -> None:
    run = start(release, draft="mha")

    assert run.ready, run.log[-2000:]
    assert run.value("hicache_draft_builder_info", state="latent") == 1
    assert run.value("hicache_pool_expected", role="draft") == 0
    assert [m["harmful"] for m in mismatches(run)] == ["false"]
    assert run.samples("hicache_registrations_total", role="draft") == []
    assert failures(run) == []


@pytest.mark.parametrize("release", releases(*LATENT))
def test_always_fixes_a_latent_draft_too(start: Start, release: str) -> None:
    run = start(release, draft="mha", env={"HICACHE_OBS_DRAFT_FIX": "always"})

    assert run.ready, run.log[-2000:]
    assert {pool["allocator"] for pool in run.reports[0]["pools"]} == {
        "MooncakeHostTensorAllocator"
    }
    assert run.value("hicache_draft_builder_info", state="applied") == 1
    assert mismatches(run) == []


@pytest.mark.parametrize("release", releases(*UPSTREAM))
def test_upstream_fix_is_seen_and_nothing_touched(start: Start, release: str) -> None:
    run = start(release, draft="mha")

    assert run.ready, run.log[-2000:]
    assert run.value("hicache_draft_builder_info", state="upstream") == 1
    assert failures(run) == []
    assert run.samples("hicache_allocator_mismatch") == []
    assert run.value("hicache_pool_registered", role="target") == 1
    assert run.value("hicache_pool_registered", role="draft") == 1
    assert [pool["expected"] for pool in run.of("pool", role="draft")] == [True]


@pytest.mark.parametrize("release", releases(*HALF_SEGMENT))
def test_half_segment_of_an_mha_target_is_told(start: Start, release: str) -> None:
    run = start(release, draft="mha")

    assert not run.ready
    assert run.returncode < 0
    target = {"role": "target", "pool": "kv", "allocator": "mooncake", "mode": "standalone"}
    told = {"code": "-1", "cause": "segment_size_mismatch"}
    assert run.value("hicache_registrations_total", outcome="failure", **target, **told) == 1
    assert run.value("hicache_failure_active", stage="registration", **target, **told) == 1
    assert run.samples("hicache_allocator_mismatch") == []
    assert run.value("hicache_pool_registered", role="target") == 0


@pytest.mark.parametrize("release", releases("0.5.20", *HALF_SEGMENT))
def test_mla_target_with_mha_draft_registers(start: Start, release: str) -> None:
    run = start(release, target="mla", draft="mha")

    assert run.ready, run.log[-2000:]
    assert failures(run) == []
    assert (
        run.value("hicache_host_pool_info", role="target", pool_class="MLATokenToKVPoolHost") == 1
    )
    assert run.value("hicache_pool_registered", role="draft", pool="draft") == 1
    assert [pool["expected"] for pool in run.of("pool", role="draft")] == [True]


def test_embedded_store_takes_the_default_allocator(start: Start) -> None:
    run = start("0.5.14", draft="mha", embedded=True, env=OFF)

    assert run.ready, run.log[-2000:]
    assert [m["harmful"] for m in mismatches(run)] == ["false"]
    draft = {"mode": "embedded", "role": "draft", "allocator": "default"}
    assert run.value("hicache_registrations_total", outcome="success", **draft) == 1
    assert run.value("hicache_store_info", mode="embedded", protocol="tcp") == 1
    assert failures(run) == []


@pytest.mark.parametrize("release", releases("0.5.23"))
def test_old_bug_on_new_code_is_told_the_same_way(start: Start, release: str) -> None:
    run = start(release, target="mla", draft="mha", force_draft_allocator="default")

    assert not run.ready
    assert [(f["role"], f["cause"]) for f in failures(run)] == [("draft", "foreign_buffer")]
    assert run.value("hicache_draft_builder_info", state="upstream") == 1
    assert [m["harmful"] for m in mismatches(run)] == ["true"]


def test_asymmetric_draft_dies_before_any_registration(start: Start) -> None:
    run = start("0.5.14", draft="asymmetric")

    assert not run.ready
    assert [(f["role"], f["cause"], f["code"]) for f in failures(run)] == [
        ("draft", "unsupported_buffer_shape", "")
    ]


def test_series_of_a_rank_stay_in_bounds(start: Start) -> None:
    whole = {"draft": "mha", "transfer_engine": True}
    for run in (start("0.5.14", **whole), start("0.5.14", **whole, env=OFF)):
        series = [
            line for line in (run.scraped or run.left).splitlines() if line.startswith("hicache_")
        ]
        assert 30 < len(series) <= 80


@pytest.mark.parametrize("fixed", [True, False])
def test_promtool_finds_nothing_to_say(start: Start, promtool: str, fixed: bool) -> None:
    run = start("0.5.14", draft="mha", **({} if fixed else {"env": OFF}))
    lines = (run.scraped or run.left).splitlines(keepends=True)
    ours = [line for line in lines if "hicache_" in line and "sglang" not in line.split("{")[0]]

    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input="".join(ours),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
