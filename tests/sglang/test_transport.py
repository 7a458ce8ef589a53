"""RDMA asked for, TCP got: SGLang's own transfer engine on the real Mooncake, without an HCA."""

from __future__ import annotations

import re

import pytest
from conftest import Run, Start, releases

from hicache_obs.hooks.transport import INFINIBAND

INFO = "hicache_transport_info"


def listens_by_tcp(run: Run) -> bool:
    """Whether Mooncake's own log says that it took TCP."""
    return re.search(r"tcp_transport\.cpp.*TcpTransport: listen on port", run.log) is not None


@pytest.mark.parametrize("release", releases())
def test_tcp_in_place_of_rdma_is_told(start: Start, release: str) -> None:
    if INFINIBAND.is_dir():
        pytest.skip("this machine has RDMA devices")
    run = start(release, target="mla", transfer_engine=True)

    assert run.ready, run.log[-2000:]
    assert listens_by_tcp(run)
    assert run.value(INFO, requested="rdma", actual="tcp") == 1
    assert len(run.samples(INFO)) == 1
    called = "hicache_call_in_progress_since_timestamp_seconds"
    assert run.value(called, api="initialize", role="none") == 0


@pytest.mark.parametrize(
    ("env", "requested"),
    [({"MC_FORCE_TCP": "0"}, "rdma"), ({"MOONCAKE_PROTOCOL": "tcp"}, "tcp")],
    ids=["forced", "asked for"],
)
def test_tcp_by_a_setting(start: Start, env: dict[str, str], requested: str) -> None:
    run = start("0.5.14", transfer_engine=True, env=env)

    assert run.ready, run.log[-2000:]
    assert listens_by_tcp(run)
    assert run.value(INFO, requested=requested, actual="tcp") == 1


def test_an_engine_that_does_not_come_up_has_no_transport(start: Start) -> None:
    if INFINIBAND.is_dir():
        pytest.skip("this machine has RDMA devices")
    run = start("0.5.14", transfer_engine=True, env={"MC_FORCE_HCA": "1"})

    assert not run.ready
    assert "RuntimeError: Mooncake Transfer Engine initialization failed." in run.log
    assert run.samples(INFO) == []
    (returned,) = run.of("call_returned", api="initialize")
    assert returned["outcome"] == "failure"


def test_an_engine_without_hicache_leaves_no_trace(start: Start) -> None:
    run = start("0.5.14", hicache=False, storage_backend="none", transfer_engine=True)

    assert run.ready, run.log[-2000:]
    assert listens_by_tcp(run)
    assert run.journals == []
