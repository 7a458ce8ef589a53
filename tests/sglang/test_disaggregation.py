"""Prefill and decode servers, and the decode server's offload manager.

SGLang's own: what it makes of ``disaggregation_mode``, the pools, the cache tree, the offload
manager, the controllers. Left out: the transfer between the two.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bench.harness import Mooncake
from conftest import Run, Start, releases
from journals import served
from runs_of import BYTES, FAILURE, OFFLOAD, REGISTERED, SAMPLE, UP, failing, failures, nowhere
from together import Together, exporter, roles_of

from hicache_obs.exporter.host import Host

disaggregated = pytest.mark.parametrize(
    "release", releases("0.5.11", "0.5.14", "0.5.18", "0.5.20", "0.5.23", sample=("0.5.23",))
)


@disaggregated
def test_prefill_and_decode_on_one_host(mooncake: Mooncake, tmp_path: Path, release: str) -> None:
    """One state directory, two ports. SGLang's own: what it makes of ``disaggregation_mode`` (a
    decode server has HiCache by its own radix cache). Left out: the transfer between the two."""
    state = tmp_path / "state"
    with ExitStack() as stack:
        pair = Together(stack, mooncake, tmp_path, release)
        servers = {
            name: pair.start(name, state, disaggregation=name, target="mla", draft="none", **port)
            for name, port in PORTS.items()
        }
        for server in servers.values():
            server.wait_ready(150)
        host = exporter(state)
        both = {("30501", "prefill"), ("30502", "decode")}
        for name in (UP, "hicache_worker_info", "hicache_host_pool_bytes", REGISTERED):
            assert roles_of(host, name) == both, name
        runs = pair.end(servers)

    for name, run in runs.items():
        assert run.ready, run.log[-2000:]
        port = str(PORTS[name]["server_port"])
        labels = {"engine_type": name, "server_port": port}
        assert run.value(UP, **labels) == 1
        assert len(run.samples(UP)) == 1
        assert run.value(REGISTERED, role="target", **labels) == 1
        ((pool,),) = (report["pools"] for report in run.reports)
        assert run.value("hicache_host_pool_bytes", **labels) == pool["bytes"]
        assert run.value(BYTES, **labels) == pool["bytes"]
        (theirs,) = {found["engine_type"] for _, found, _ in run.samples("sglang:num_running_reqs")}
        assert theirs == name
    assert len(list(state.glob("*.jsonl"))) == 2


PORTS = {"prefill": {"server_port": 30501}, "decode": {"server_port": 30502}}


@pytest.mark.parametrize("release", releases("0.5.14", "0.5.20", "0.5.23", sample=("0.5.14",)))
def test_a_failing_decode_server_leaves_the_prefill_servers_rows(
    mooncake: Mooncake, tmp_path: Path, release: str
) -> None:
    """SGLang's own: both servers, and the decode server's death of a standalone client that is not
    there. Then it is started again, rightly. Left out: the transfer between the two."""
    state = tmp_path / "state"
    how: dict[str, Any] = {"target": "mla", "draft": "none"}
    decode = {"disaggregation": "decode", **PORTS["decode"], **how}
    with ExitStack() as stack:
        pair = Together(stack, mooncake, tmp_path, release)
        prefill = pair.start("prefill", state, disaggregation="prefill", **PORTS["prefill"], **how)
        prefill.wait_ready(150)
        host = exporter(state)
        before = _rows_of(host, "30501")
        assert before
        with pair.start("failing", state, extra_config=nowhere(), **decode) as failed:
            assert failed.wait(150) != 0
        host.refresh()
        (failure,) = failing(host)
        told_by = {"engine_type": "decode", "server_port": "30502", "cause": "client_unreachable"}
        assert told_by.items() <= failure.items()
        assert _rows_of(host, "30501") == before

        mended = pair.start("mended", state, **decode)
        mended.wait_ready(150)
        host.refresh()
        assert failing(host) == []
        assert roles_of(host, REGISTERED) == {("30501", "prefill"), ("30502", "decode")}
        assert _rows_of(host, "30501") == before
        for server in (prefill, mended):
            assert server.terminate(60) == 0


def _rows_of(host: Host, port: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (name, labels): value
        for name, rows in served(host).items()
        for labels, value in rows.items()
        if dict(labels).get("server_port") == port
    }


DEFAULT_ALLOCATOR = ("0.5.11", "0.5.13", "0.5.14", "0.5.16")
"""There the offload manager builds its pool without ``allocator_type``."""


@pytest.mark.parametrize("release", releases(*DEFAULT_ALLOCATOR, sample=SAMPLE))
def test_the_offload_managers_default_allocator_is_told(start: Start, release: str) -> None:
    """SGLang's own: ``DecodeKVCacheOffloadManager``, its host pool and controller, and its refusal
    by a standalone store: "requires MooncakeHostTensorAllocator" (0.5.11 to 0.5.16)."""
    run = start(release, server_port=30601, **OFFLOAD)

    assert not run.ready
    assert "requires MooncakeHostTensorAllocator" in run.log
    cause = {"stage": "setup", "mode": "standalone", "cause": "allocator_required"}
    assert run.value(FAILURE, engine_type="decode", role="none", **cause) == 1
    starts = {"outcome": "failure", "stage": "setup", "cause": "allocator_required"}
    assert run.value("hicache_worker_starts_total", engine_type="decode", **starts) == 1
    mismatch = {"role": "target", "expected": "mooncake", "actual": "default"}
    reason = {"reason": "backend_requires", "harmful": "true"}
    assert run.value("hicache_allocator_mismatch", **mismatch, **reason) == 1
    (pool,) = run.of("pool")
    assert (pool["allocator"], pool["expected"]) == ("default", True)


@pytest.mark.parametrize("release", releases("0.5.18", "0.5.20", "0.5.23", sample=SAMPLE))
def test_the_offload_managers_pool_registers(start: Start, release: str) -> None:
    """From 0.5.18 the manager asks for the backend's allocator: SGLang's own."""
    run = start(release, server_port=30601, **OFFLOAD)
    _assert_offload_stands(run, "mooncake", "standalone")


@pytest.mark.parametrize("release", releases("0.5.11", "0.5.14", "0.5.16", sample=()))
def test_an_embedded_store_takes_the_offload_managers_pool(start: Start, release: str) -> None:
    """The same manager on a store that owns no shared memory: SGLang's own, TCP on loopback."""
    run = start(release, server_port=30601, embedded=True, **OFFLOAD)
    _assert_offload_stands(run, "default", "embedded")


def _assert_offload_stands(run: Run, allocator: str, mode: str) -> None:
    assert run.ready, run.log[-2000:]
    assert failures(run) == []
    worker = {"engine_type": "decode", "server_port": "30601"}
    assert run.value(UP, **worker) == 1
    (report,) = run.reports
    (theirs,) = report["pools"]
    own = {"role": "target", "allocator": allocator, **worker}
    assert run.value("hicache_host_pool_bytes", **own) == theirs["bytes"]
    assert run.value(BYTES, mode=mode, **own) == theirs["bytes"]
    assert run.value(REGISTERED, role="target") == 1


@pytest.mark.parametrize(
    ("release", "embedded"),
    [pytest.param("0.5.14", True, marks=pytest.mark.full), ("0.5.23", False)],
)
def test_the_offload_managers_pool_has_its_own_name(
    start: Start, release: str, embedded: bool
) -> None:
    """The real manager's pool belongs to no cache tree: pool ``decode_offload``. SGLang's own: all
    of it, on the bench's device pool."""
    run = start(release, server_port=30601, embedded=embedded, **OFFLOAD)

    assert run.ready, run.log[-2000:]
    pool = {"role": "target", "pool": "decode_offload"}
    for name in ("hicache_host_pool_info", "hicache_pool_expected", REGISTERED):
        assert run.value(name, **pool) == 1
    assert {event["pool"] for event in run.of("pool_registration")} == {"decode_offload"}


def test_a_decode_server_without_hicache_leaves_no_trace(start: Start) -> None:
    """SGLang's own: its chunk cache, which has no host pool (0.5.14)."""
    run = start("0.5.14", hicache=False, storage_backend="none", disaggregation="decode")

    assert run.ready, run.log[-2000:]
    assert run.journals == []
