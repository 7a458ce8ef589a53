"""Workers: labels, ranks, restarts, and what leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Start, releases

OFF = {"HICACHE_OBS_DRAFT_FIX": "off"}

TWO_RANKS: dict[str, Any] = {
    "target": "mla",
    "draft": "mha",
    "ranks": 2,
    "server_port": 30123,
    "model_name": "org/model",
    "extra_metric_labels": {"site": "a", "role": "b", "bytes": "c"},
}
two_rank_releases = pytest.mark.parametrize(
    "release", releases("0.5.14", "0.5.20", "0.5.21", "0.5.23", sample=("0.5.14", "0.5.23"))
)


@two_rank_releases
def test_ranks_and_labels_are_those_of_sglang(start: Start, release: str) -> None:
    run = start(release, **TWO_RANKS)

    assert run.ready, run.log[-2000:]
    labels = {
        "model_name": "org/model",
        "engine_type": "unified",
        "server_port": "30123",
        "pp_rank": "0",
        "dp_rank": "",
        "site": "a",
        "extra_role": "b",
        "extra_bytes": "c",
    }
    for rank in ("0", "1"):
        assert run.value("hicache_worker_up", tp_rank=rank, **labels) == 1
        assert run.value("hicache_pool_registered", tp_rank=rank, role="draft", **labels) == 1
        clash = run.value("hicache_obs_errors_total", tp_rank=rank, where="extra_label")
        assert clash == 2
        info = {"sglang_version": release, "node_rank": "0", "nnodes": "1"}
        assert run.value("hicache_worker_info", tp_rank=rank, **info) == 1
    assert len(run.journals) == 2
    sglang = run.samples("sglang:hicache_host_total_tokens")
    for _, theirs, _ in sglang:
        for name in ("model_name", "engine_type", "tp_rank", "pp_rank"):
            assert theirs[name] in {"org/model", "unified", "0", "1"}


@two_rank_releases
def test_ranks_of_one_start_share_its_launch(start: Start, release: str) -> None:
    first, second = start(release, **TWO_RANKS).of("run")
    assert first["run"] != second["run"]
    assert first["launch"] == second["launch"] != ""
    assert first["boottime_ns"] > 0
    assert second["boottime_ns"] > 0


@two_rank_releases
def test_a_call_that_takes_memory_tells_its_allocator_and_the_limit(
    start: Start, release: str
) -> None:
    run = start(release, **TWO_RANKS)
    taking = run.of("call_entered", api="allocate")
    assert {entered["allocator"] for entered in taking} == {"mooncake"}
    for entered in taking + run.of("call_entered", api="pin"):
        assert entered["bytes"] > 0
        assert entered["limit_source"] in ("cgroup", "host")
        assert 0 < entered["used_bytes"] < entered["limit_bytes"]
    for entered in run.of("call_entered", api="register_buffer"):
        assert (entered["mode"], entered["allocator"]) == ("standalone", "mooncake")
        assert (entered["limit_bytes"], entered["limit_source"]) == (0, "")
    assert {entered["mode"] for entered in run.of("call_entered", api="setup")} == {"standalone"}


def test_a_restart_over_the_same_directories_ends_the_failure(start: Start, tmp_path: Path) -> None:
    shared = {"state_dir": tmp_path / "state", "multiproc_dir": tmp_path / "multiproc"}
    failed = start("0.5.14", draft="mha", env=OFF, **shared)
    fixed = start("0.5.14", draft="mha", **shared)

    assert not failed.ready
    assert fixed.ready, fixed.log[-2000:]
    assert failed.value("hicache_failure_active", cause="foreign_buffer") == 1
    assert fixed.samples("hicache_failure_active", cause="foreign_buffer") == []
    assert fixed.samples("hicache_allocator_mismatch") == []
    assert fixed.value("hicache_registrations_total", outcome="failure") == 1, "counters stay"
    gauges = [name for name in fixed.files if "livemostrecent" in name]
    assert len(gauges) == 1
    assert len(fixed.journals) == 2


def test_a_server_without_hicache_leaves_no_trace(start: Start) -> None:
    run = start("0.5.14", hicache=False, storage_backend="none")
    assert run.ready, run.log[-2000:]
    assert run.journals == []
    assert "hicache_" not in run.scraped.replace("sglang:hicache_", "")


def test_without_sglangs_metrics_the_journal_stands_alone(start: Start) -> None:
    run = start("0.5.14", draft="mha", metrics=False)
    assert run.ready, run.log[-2000:]
    assert run.of("worker_ready")
    assert run.of("obs_error") == []
    assert run.files == []
    assert not run.reports[0]["prometheus_client_before_first_pool"]


def test_live_metrics_can_be_switched_off(start: Start) -> None:
    run = start("0.5.14", draft="mha", env={"HICACHE_OBS_PROMETHEUS": "off"})
    assert run.ready, run.log[-2000:]
    assert run.of("worker_ready")
    assert "hicache_" not in run.scraped.replace("sglang:hicache_", "")
