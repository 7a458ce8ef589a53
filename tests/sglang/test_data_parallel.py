"""Data parallelism: replicas, and data-parallel attention.

SGLang's own: the data-parallel controller, the start and the numbers of the ranks, the process
groups (over gloo), the labels of its scheduler metrics.
"""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Run, Start, releases
from journals import starts
from runs_of import MLA, REGISTERED, SAMPLE, UP, failing
from together import Journal, after_death, exporter, journals, told


def by_rank(run: Run, name: str) -> set[tuple[str, ...]]:
    """The rank labels of a series, as SGLang names them; dp_rank "" where it has none."""
    return {
        tuple(labels.get(each, "") for each in ("engine_type", "tp_rank", "pp_rank", "dp_rank"))
        for _, labels, _ in run.samples(name)
    }


@pytest.mark.parametrize(
    ("release", "how"),
    [
        pytest.param(*release.values, how, id=f"{release.values[0]}-{name}", marks=release.marks)
        for name, how, sample in (
            ("attention", {"ranks": 2, "dp_size": 2, "dp_attention": True}, ("0.5.14",)),
            ("replicas", {"dp_size": 2}, ("0.5.23",)),
        )
        for release in releases(
            "0.5.13", "0.5.14", "0.5.18", "0.5.20", "0.5.21", "0.5.23", sample=sample
        )
    ],
)
def test_data_parallel_ranks_are_those_of_sglang(
    start: Start, release: str, how: dict[str, Any]
) -> None:
    """SGLang's own: the data-parallel controller, which numbers and starts the ranks, and the
    labels of its scheduler metrics (``SchedulerMetricsCollector.init_new``), which ours must have.
    """
    run = start(release, **MLA, server_port=30400, **how)

    assert run.ready, run.log[-2000:]
    ranks = ("0", "1") if how.get("dp_attention") else ("0", "0")
    expected = {("unified", ranks[dp], "0", str(dp)) for dp in (0, 1)}
    assert by_rank(run, "sglang:num_running_reqs") == expected
    assert by_rank(run, UP) == expected
    for role in ("target", "draft"):
        found = run.samples(REGISTERED, role=role)
        assert sorted(labels["dp_rank"] for _, labels, _ in found) == ["0", "1"]
        assert [value for _, _, value in found] == [1, 1]
    of_events = {(event["tp_rank"], event["dp_rank"]) for event in run.of("worker_starting")}
    assert of_events == {(rank, dp) for _, rank, _, dp in expected}
    assert len(run.journals) == 2
    first, second = run.of("run")
    assert first["run"] != second["run"]
    assert first["launch"] == second["launch"] != ""
    host = exporter(run.state_dir)
    (server,) = host.view.snapshot.servers
    names = {f"tp{rank} pp0 dp{dp}" for _, rank, _, dp in expected}
    assert {rank.rank for rank in server.ranks} == names


@pytest.mark.parametrize(
    ("release", "how"),
    [
        ("0.5.14", {"draft": "mha", "env": {"HICACHE_OBS_DRAFT_FIX": "off"}}),
        ("0.5.23", {**MLA, "force_draft_allocator": "default"}),
    ],
    ids=SAMPLE,
)
def test_a_failure_under_the_data_parallel_controller(
    start: Start, release: str, how: dict[str, Any]
) -> None:
    """Up to 0.5.20 a rank that raises sends SIGQUIT to the controller, whose death kills the other
    rank: SGLang's own. The fault is that of 0.5.14; on 0.5.23 the draft builder is made to ask for
    the default allocator, which stands in for it."""
    run = start(release, ranks=2, dp_size=2, dp_attention=True, **how)

    assert not run.ready
    raised = [str(dp) for dp, of_rank in enumerate(journals(run)) if _failed(of_rank)]
    assert raised
    host = after_death(run.state_dir)
    assert {failure["cause"] for failure in failing(host)} == {"foreign_buffer"}
    assert sorted(failure["dp_rank"] for failure in failing(host)) == raised
    causes = [starts(host, outcome="failure", cause=c) for c in ("foreign_buffer", "peer")]
    assert sum(len(found) for found in causes) == len(starts(host)) == 2


def _failed(events: Journal) -> bool:
    return bool(told(events, "registration", outcome="failure"))
