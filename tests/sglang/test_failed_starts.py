"""Starts that fail elsewhere: no client, no master, no page-locking, no memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.harness import Mooncake, free_port
from conftest import Start, releases


def test_a_client_that_is_not_there_is_told(start: Start) -> None:
    address = f"127.0.0.1:{free_port()}"
    config = {
        "client_server_address": address,
        "master_server_address": address,
        "standalone_storage": True,
        "check_server": False,
    }
    run = start("0.5.14", draft="mha", extra_config=config)

    assert not run.ready
    told = {"mode": "standalone", "code": "-1", "cause": "client_unreachable"}
    assert run.value("hicache_failure_active", stage="setup", role="none", **told) == 1
    assert run.value("hicache_store_setups_total", outcome="failure", **told) == 1
    assert run.value("hicache_worker_starts_total", stage="setup", outcome="failure") == 1
    assert run.value("hicache_pool_expected", role="target") == 1
    assert run.value("hicache_pool_registered", role="target") == 0


@pytest.mark.full  # Mooncake tries its port 20 times: two minutes
def test_a_master_that_is_not_there_is_told(start: Start, mooncake: Mooncake) -> None:
    config = mooncake.extra_config(
        standalone=False, master_server_address=f"127.0.0.1:{free_port()}"
    )
    run = start("0.5.14", extra_config=config)

    assert not run.ready
    told = {"mode": "embedded", "code": "-1", "cause": "master_unreachable"}
    assert run.value("hicache_failure_active", stage="setup", **told) == 1


@pytest.mark.parametrize(
    "release", releases("0.5.12", "0.5.13", "0.5.14", "0.5.23", sample=("0.5.14", "0.5.23"))
)
def test_failed_page_locking_is_told(start: Start, release: str) -> None:
    """cudaHostRegister is a stand-in that answers 2, as recorded for more than 512 GiB."""
    run = start(release, target="mla", env={"BENCH_CUDA_RC": "2"})

    if release == "0.5.12":  # SGLang ignores the code there, in a function of several jobs
        assert run.ready, run.log[-2000:]
        return
    assert not run.ready
    active = {"stage": "pinning", "cause": "pin", "code": "2", "role": "target", "pool": "kv"}
    assert run.value("hicache_failure_active", **active) == 1
    assert run.value("hicache_host_pool_allocations_total", outcome="failure", reason="pin") == 1
    assert run.value("hicache_worker_starts_total", outcome="failure", stage="pinning") == 1
    if release != "0.5.13":  # there it is inline in alloc_with_host_register
        assert run.value("hicache_pins_total", code="2", outcome="failure") == 1


def test_no_memory_for_the_pool_is_told(start: Start) -> None:
    """psutil's answer is a stand-in: less free memory than SGLang's reserve of 10 GiB."""
    run = start("0.5.14", draft="mha", paths=[Path(__file__).parent / "no_memory"])

    assert not run.ready
    assert "Not enough host memory" in run.log
    failed = {"outcome": "failure", "reason": "budget", "role": "target", "size_class": "8MiB"}
    assert run.value("hicache_host_pool_allocations_total", **failed) == 1
    assert run.value("hicache_failure_active", stage="allocation", cause="budget") == 1
    limit = run.value("hicache_host_limit_bytes", source="psutil")
    assert 0 < run.value("hicache_host_memory_bytes", source="psutil") < limit


def test_a_pool_smaller_than_that_of_the_device_is_told(start: Start) -> None:
    """Up to 0.5.14 SGLang refuses it; the text alone tells it from a want of memory."""
    run = start("0.5.14", draft="mha", ratio=0.5)

    assert not run.ready
    assert "host memory should be larger than the device memory" in run.log
    assert run.value("hicache_failure_active", stage="allocation", cause="too_small") == 1
