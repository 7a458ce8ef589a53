"""The storage backend attached and detached at run time, on the real cache tree.

SGLang's own: the scheduler's ``attach_hicache_storage_wrapped`` and its counterpart for detach, the
tree, its controller and storage threads, the store, Mooncake. What stands in: the way of the
request from the HTTP server (``Server.tell`` of the bench), and ``is_fully_idle``, which reads
queues of requests that the bench's scheduler does not have.

Each test compares what hicache-obs tells with what SGLang answered and left standing.
"""

from __future__ import annotations

from typing import Any

import pytest
from bench.harness import Mooncake
from conftest import Run, releases
from runs_of import (
    BYTES,
    EVERY_TREE,
    MLA,
    NO_STORE,
    REGISTERED,
    SAMPLE,
    Step,
    Steps,
    embedded,
    failures,
    steps_of,
    total,
)

EXPECTED = "hicache_pool_expected"
STORE = "hicache_store_info"
SETUPS = "hicache_store_setups_total"
REGISTRATIONS = "hicache_registrations_total"

every_tree = pytest.mark.parametrize("release", releases(*EVERY_TREE, sample=SAMPLE))


@pytest.fixture(scope="module")
def steps(mooncake: Mooncake, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    return steps_of(mooncake, tmp_path_factory.mktemp)


def course(steps: Steps, mooncake: Mooncake, release: str) -> list[Step]:
    """Attached to a server without a backend, attached again, detached, attached anew."""
    attach, detach = ("attach", embedded(mooncake)), ("detach", None)
    return steps(release, attach, attach, detach, attach, **MLA, **NO_STORE)


@every_tree
def test_an_attach_at_run_time_registers_every_pool(
    steps: Steps, mooncake: Mooncake, release: str
) -> None:
    """An embedded store: it takes the default allocator that pools have without a backend."""
    attach, *_ = course(steps, mooncake, release)

    assert attach.answer["success"]
    assert attach.answer["message"] == "Attached HiCache storage backend successfully."
    assert attach.answer["tree_enable_storage"]
    assert {pool["role"] for pool in attach.reports[0]["pools"]} == {"target", "draft"}
    _assert_every_pool_is_registered(attach)
    assert attach.value(SETUPS, mode="embedded", outcome="success") == 1
    assert attach.value(STORE, mode="embedded", protocol="tcp") == 1


def _assert_every_pool_is_registered(run: Run) -> None:
    for pool in run.reports[0]["pools"]:
        labels = {"mode": "embedded", "role": pool["role"], "allocator": "default"}
        assert run.value(BYTES, **labels) == total(run, BYTES, role=pool["role"]) == pool["bytes"]
        assert run.value(EXPECTED, role=pool["role"]) == 1
        assert run.value(REGISTERED, role=pool["role"]) == 1
    assert total(run, STORE) == 1
    assert failures(run) == []


@every_tree
def test_an_attach_of_what_is_attached_changes_nothing(
    steps: Steps, mooncake: Mooncake, release: str
) -> None:
    """SGLang's own answer: true, and policies updated."""
    first, again, *_ = course(steps, mooncake, release)

    assert again.answer["success"]
    assert "already enabled with same backend" in again.answer["message"]
    _assert_every_pool_is_registered(again)
    for counter in (SETUPS, REGISTRATIONS):
        assert total(again, counter) == total(first, counter)


@every_tree
def test_a_detach_ends_what_the_attach_began(
    steps: Steps, mooncake: Mooncake, release: str
) -> None:
    """SGLang drops the store, and with the object Mooncake's registrations end (``close`` does
    nothing): no store stands in the rank."""
    *_, detach, _ = course(steps, mooncake, release)

    assert detach.answer["success"]
    assert detach.answer["message"] == "Detached HiCache storage backend successfully."
    assert detach.answer["stores"] == []
    assert detach.answer["controller"]["threads"] == 0
    _assert_nothing_is_registered(detach)
    assert total(detach, "hicache_host_pool_bytes", role="target") > 0, "the pools stay"


def _assert_nothing_is_registered(run: Run) -> None:
    names = (BYTES, REGISTERED, EXPECTED, STORE)
    assert {name: total(run, name) for name in names} == dict.fromkeys(names, 0)
    assert failures(run) == []


@every_tree
def test_a_second_attach_counts_no_byte_twice(
    steps: Steps, mooncake: Mooncake, release: str
) -> None:
    """SGLang's own: a new store, which is handed the same buffers again."""
    first, *_, anew = course(steps, mooncake, release)

    assert anew.answer["success"]
    _assert_every_pool_is_registered(anew)
    for counter in (SETUPS, REGISTRATIONS):
        assert total(anew, counter, outcome="success") == 2 * total(first, counter)
    assert [event["outcome"] for event in anew.of("attach")] == ["success", "success"]


@pytest.mark.parametrize("release", releases("0.5.13", "0.5.14", "0.5.16", "0.5.18", sample=SAMPLE))
def test_a_tree_that_cannot_attach_says_so_and_nothing_happens(
    steps: Steps, mooncake: Mooncake, release: str
) -> None:
    """``UnifiedRadixCache`` up to 0.5.18, chosen by SGLang's own setting. Its refusal to detach
    leaves everything registered."""
    how: dict[str, Any] = {"env": {"SGLANG_ENABLE_UNIFIED_RADIX_TREE": "1"}}
    config = embedded(mooncake)
    taken = steps(release, ("detach", None), ("attach", config), extra_config=config, **how)

    for step in taken:
        assert step.reports[0]["tree_cache"] == "UnifiedRadixCache"
        assert not step.answer["success"]
        assert "does not support runtime HiCache storage" in step.answer["message"]
        assert step.answer["controller"]["enable_storage"]
        assert total(step, SETUPS) == 1
        assert step.value(REGISTERED, role="target") == 1
        assert step.value(STORE, mode="embedded") == 1
        assert failures(step) == []


@pytest.mark.parametrize("release", releases("0.5.14", "0.5.20", "0.5.23", sample=("0.5.23",)))
def test_every_rank_attaches_and_detaches(steps: Steps, mooncake: Mooncake, release: str) -> None:
    """Two ranks; the groups that an attach makes (``_create_prefetch_sync_groups``) need both."""
    attach, detach = steps(
        release, ("attach", embedded(mooncake)), ("detach", None), **MLA, **NO_STORE, ranks=2
    )

    for step in (attach, detach):
        assert [answer["success"] for answer in step.answers] == [True, True]
    for rank in ("0", "1"):
        assert total(attach, REGISTERED, tp_rank=rank) == 2
    _assert_nothing_is_registered(detach)
