"""One server over two hosts, each with a state directory and an exporter of its own.

SGLang's own: which rank a host starts, the meeting of the two at ``dist_init_addr``, the process
groups (over gloo). Both hosts are this machine (bench/README.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from bench.harness import Mooncake, free_port
from conftest import Run, releases
from runs_of import FAILURE, REGISTERED, UP, failing, failures, nowhere
from together import Together, after_death, exporter

Hosts = Callable[..., tuple[Run, Run]]


@pytest.fixture(scope="module")
def hosts(mooncake: Mooncake, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """Two ranks on two hosts, one each; each distinct start runs once. A host is a state directory
    of its own and, where this is root, a host name of its own."""
    kept: dict[tuple[str, bool], tuple[Run, Run]] = {}

    def run(release: str, *, second_fails: bool = False) -> tuple[Run, Run]:
        key = release, second_fails
        if key not in kept:
            with ExitStack() as stack:
                folder = tmp_path_factory.mktemp("hosts")
                together = Together(stack, mooncake, folder, release)
                shared: dict[str, Any] = {
                    "ranks": 2,
                    "nodes": 2,
                    "dist_address": f"127.0.0.1:{free_port()}",
                    "server_port": 30300,
                }
                servers = {}
                for rank, name in enumerate(("node-0", "node-1")):
                    own: dict[str, Any] = {"node_rank": rank}
                    if os.geteuid() == 0:
                        own["host"] = name
                    if rank and second_fails:
                        own["extra_config"] = nowhere()
                    servers[name] = together.start(name, **shared, **own)
                runs = together.end(servers)
                kept[key] = runs["node-0"], runs["node-1"]
        return kept[key]

    return run


tensor_parallel = pytest.mark.parametrize(
    "release", releases("0.5.11", "0.5.14", "0.5.18", "0.5.20", "0.5.23", sample=("0.5.23",))
)


@tensor_parallel
def test_two_hosts_have_a_rank_and_a_journal_each(hosts: Hosts, release: str) -> None:
    """tp 2, nnodes 2, one rank a host. SGLang's own: which rank a host starts, and the meeting of
    the two at ``dist_init_addr``. Both "hosts" are this machine, with two state directories."""
    both = hosts(release)

    for number, run in enumerate(both):
        rank = str(number)
        assert run.ready, run.log[-2000:]
        place = {"node_rank": rank, "nnodes": "2", "sglang_version": release}
        assert run.value("hicache_worker_info", tp_rank=rank, server_port="30300", **place) == 1
        assert {labels["tp_rank"] for _, labels, _ in run.samples(UP)} == {rank}
        assert [report["rank"] for report in run.reports] == [number]
        (starting,) = run.of("worker_starting")
        assert (starting["tp_rank"], starting["node_rank"]) == (rank, rank)
        assert len(run.journals) == 1
        assert run.value(REGISTERED, role="target", tp_rank=rank) == 1
        assert failures(run) == []
    first, second = (run.of("run")[0] for run in both)
    assert first["run"] != second["run"]
    assert first["launch"] != second["launch"]
    if os.geteuid() == 0:
        assert (first["host"], second["host"]) == ("node-0", "node-1")
        host = exporter(*(run.state_dir for run in both))
        found = [(server.host, server.port) for server in host.view.snapshot.servers]
        assert sorted(found) == [("node-0", "30300"), ("node-1", "30300")]


@pytest.mark.parametrize(
    "release", releases("0.5.12", "0.5.14", "0.5.20", "0.5.23", sample=("0.5.14",))
)
def test_a_failure_on_the_second_host_is_told_there(hosts: Hosts, release: str) -> None:
    """The second host's standalone client is not there (a real address without a listener). The
    first host's rank then finds its peer gone, in gloo: SGLang's and torch's own."""
    first, second = hosts(release, second_fails=True)

    assert not first.ready
    assert not second.ready
    told = {"stage": "setup", "mode": "standalone", "code": "-1", "cause": "client_unreachable"}
    assert second.value(FAILURE, tp_rank="1", role="none", **told) == 1
    ended = {"outcome": "failure", "stage": "setup", "cause": "client_unreachable"}
    assert second.value("hicache_worker_starts_total", tp_rank="1", **ended) == 1
    (of_second,) = second.of("worker_failed")
    assert of_second["cause"] == "client_unreachable"

    assert failures(first) == []
    assert first.of("setup", outcome="failure") == []
    assert "client_unreachable" not in first.left
    (of_first,) = first.of("worker_failed")
    assert "gloo" in of_first["error"]
    assert (of_first["stage"], of_first["cause"]) == ("", "peer")

    exporters = [after_death(run.state_dir) for run in (first, second)]
    assert [len(failing(host)) for host in exporters] == [0, 1]
    shown = [rank for host in exporters for one in host.view.snapshot.servers for rank in one.ranks]
    assert [(rank.rank, rank.start_cause) for rank in shown] == [
        ("tp0 pp0", "peer"),
        ("tp1 pp0", "client_unreachable"),
    ]
    assert shown[0].failures == ()
    assert [failure.error for failure in shown[1].failures] == [of_second["error"]]
