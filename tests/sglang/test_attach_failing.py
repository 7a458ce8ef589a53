"""Attaches at run time that fail, on the real cache tree (what is real in it: test_attach.py).

SGLang's code is left as it is in every test but one, whose docstring says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.harness import Mooncake, start_server
from conftest import Run, releases
from journals import values
from runs_of import (
    BYTES,
    EVERY_TREE,
    FAILURE,
    MLA,
    NO_STORE,
    REGISTERED,
    SAMPLE,
    Step,
    Steps,
    embedded,
    failing,
    failures,
    nowhere,
    steps_of,
    total,
)

from hicache_obs.exporter.host import Host

HALF: dict[str, Any] = {**NO_STORE, "draft": "asymmetric"}
"""A draft whose K and V differ in width: its host pool has no single buffer, so Mooncake's store
registers the target and then raises at the draft (0.5.14 and later); nothing is made to fail."""
STANDING = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""There an attach that fails at a later pool leaves its store and its threads standing."""
DETACH = ("detach", None)
STARTS = "hicache_worker_starts_total"
STORE = "hicache_store_info"
MISMATCH = "hicache_allocator_mismatch"

half_way = pytest.mark.parametrize(
    "release", releases("0.5.14", "0.5.16", "0.5.18", "0.5.20", "0.5.21", "0.5.23", sample=SAMPLE)
)


@pytest.fixture(scope="module")
def steps(mooncake: Mooncake, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    return steps_of(mooncake, tmp_path_factory.mktemp)


def _assert_the_server_goes_on(run: Run) -> None:
    """A failure at run time is no start's."""
    assert run.value("hicache_worker_up") == 1
    assert run.value(STARTS, outcome="success") == 1
    assert total(run, STARTS, outcome="failure") == 0


def _assert_nothing_stands(run: Run) -> None:
    names = (BYTES, REGISTERED, STORE)
    assert {name: total(run, name) for name in names} == dict.fromkeys(names, 0)


@pytest.mark.parametrize("release", releases(*EVERY_TREE, sample=SAMPLE))
def test_a_standalone_store_refuses_pools_that_were_built_without_a_backend(
    steps: Steps, mooncake: Mooncake, release: str
) -> None:
    """They have the default allocator, and will have it until the server is started again. An
    embedded store takes them, and ends the failure."""
    standalone, other = ("attach", mooncake.extra_config()), ("attach", embedded(mooncake))
    refused, taken = steps(release, standalone, other, **MLA, **NO_STORE)

    assert not refused.answer["success"]
    assert "requires MooncakeHostTensorAllocator" in refused.answer["message"]
    assert not refused.answer["controller"]["enable_storage"]
    told = {"stage": "setup", "mode": "standalone", "cause": "allocator_required"}
    assert refused.value(FAILURE, **told) == len(failures(refused)) == 1
    mismatch = {"role": "target", "actual": "default", "expected": "mooncake"}
    assert refused.value(MISMATCH, **mismatch, harmful="true") == 1
    _assert_nothing_stands(refused)
    _assert_the_server_goes_on(refused)

    assert taken.answer["success"]
    assert failures(taken) == []
    assert total(taken, MISMATCH, harmful="true") == 0
    assert total(taken, BYTES, mode="embedded") > 0
    assert total(taken, STORE) == 1


@pytest.mark.parametrize("release", releases(*EVERY_TREE, sample=("0.5.23",)))
def test_an_attach_to_a_client_that_is_not_there_is_told(steps: Steps, release: str) -> None:
    """The start's store is detached first."""
    detach, attach = steps(release, DETACH, ("attach", nowhere()), **MLA)

    assert detach.answer["success"]
    assert not attach.answer["success"]
    assert "Failed to setup Mooncake store" in attach.answer["message"]
    told = {"stage": "setup", "mode": "standalone", "cause": "client_unreachable", "code": "-1"}
    assert attach.value(FAILURE, **told) == len(failures(attach)) == 1
    _assert_nothing_stands(attach)
    _assert_the_server_goes_on(attach)


def half(steps: Steps, mooncake: Mooncake, release: str) -> list[Step]:
    """An attach that fails at a later pool, another, a detach."""
    attach = ("attach", embedded(mooncake))
    return steps(release, attach, attach, DETACH, **HALF)


@half_way
def test_an_attach_that_fails_at_a_later_pool_is_told(
    steps: Steps, mooncake: Mooncake, release: str
) -> None:
    """The anchor registers, the draft does not. Up to 0.5.18 SGLang takes all of it back; from
    0.5.20 on its tree says that nothing is attached, while the controller keeps the store, its
    threads, and the target's registration."""
    attach, *_ = half(steps, mooncake, release)

    answer, stands = attach.answer, release in STANDING
    assert not answer["success"]
    assert not answer["tree_enable_storage"]
    assert answer["controller"]["enable_storage"] is stands
    assert len(answer["stores"]) == stands
    assert answer["controller"]["threads"] == (2 if stands else 0)
    told = {"stage": "registration", "role": "draft", "pool": "draft", "mode": "embedded"}
    cause = "unsupported_buffer_shape"
    assert attach.value(FAILURE, cause=cause, **told) == len(failures(attach)) == 1
    assert total(attach, REGISTERED, role="draft") == 0
    _assert_the_server_goes_on(attach)


@half_way
def test_what_a_failed_attach_leaves_registered(
    steps: Steps, mooncake: Mooncake, release: str
) -> None:
    """What hicache-obs calls registered is what SGLang left standing, not what its tree says."""
    attach, *_ = half(steps, mooncake, release)

    (size,) = {p["bytes"] for p in attach.reports[0]["pools"] if p["role"] == "target"}
    stands = release in STANDING
    found = {name: total(attach, name, role="target") for name in (BYTES, REGISTERED)}
    assert found == {BYTES: size * stands, REGISTERED: stands}
    assert total(attach, STORE) == stands
    assert total(attach, "hicache_pool_expected") == (2 if stands else 0)


@half_way
def test_a_detach_after_a_failed_attach(steps: Steps, mooncake: Mooncake, release: str) -> None:
    """From 0.5.20 on it is the only way out: another attach is refused ("already attached") without
    a call of the store. Up to 0.5.18 the tree fails on a queue that no attach made; the scheduler
    calls that a success."""
    first, again, detach = half(steps, mooncake, release)
    assert [event["outcome"] for event in detach.of("attach")] == ["failure", "failure"]

    stands, setups = release in STANDING, "hicache_store_setups_total"
    assert not again.answer["success"]
    assert ("Storage backend already attached." in again.answer["message"]) is stands
    assert total(again, setups) == total(first, setups) + (not stands)
    assert detach.answer["success"]
    assert ("has no attribute" in detach.answer["message"]) is not stands
    assert detach.answer["stores"] == []
    _assert_nothing_stands(detach)


@pytest.mark.parametrize(
    ("release", "how"),
    [
        ("0.5.14", {"draft": "mha", "env": {"HICACHE_OBS_DRAFT_FIX": "off"}}),
        pytest.param("0.5.23", {**MLA, "force_draft_allocator": "default"}, marks=pytest.mark.full),
    ],
    ids=SAMPLE,
)
def test_the_bug_at_run_time(
    steps: Steps, mooncake: Mooncake, release: str, how: dict[str, Any]
) -> None:
    """A start with an embedded store, which takes a draft of the default allocator; then a
    standalone one is attached in its place. On 0.5.23 the draft builder is made to ask for the
    default allocator (a stand-in for the fault of 0.5.14)."""
    standalone = ("attach", mooncake.extra_config())
    _, attach = steps(release, DETACH, standalone, extra_config=embedded(mooncake), **how)

    assert not attach.answer["success"]
    assert "error code: -1" in attach.answer["message"]
    told = {"stage": "registration", "cause": "foreign_buffer", "code": "-1"}
    draft = {"role": "draft", "allocator": "default", "mode": "standalone"}
    assert attach.value(FAILURE, **draft, **told) == len(failures(attach)) == 1
    harmful = {"reason": "draft_differs_from_target", "harmful": "true"}
    assert attach.value(MISMATCH, role="draft", **harmful) == 1
    assert total(attach, BYTES, mode="embedded") == 0, "that store was detached"
    assert total(attach, STORE) == total(attach, REGISTERED) == (release in STANDING)
    _assert_the_server_goes_on(attach)


@pytest.mark.parametrize("release", releases(*SAMPLE, sample=("0.5.23",)))
def test_a_client_that_dies_and_comes_back(tmp_path: Path, release: str) -> None:
    """The real standalone client is killed while it is attached. The exporter sees every step;
    SGLang's detach knows nothing of the death."""
    state = tmp_path / "state"
    env = {"HICACHE_OBS_STATE_DIR": str(state)}
    how = {"folder": tmp_path / "server", "metrics": False, **MLA}
    with (
        Mooncake(tmp_path / "mooncake") as mooncake,
        start_server(release, mooncake, env, **how) as server,
    ):
        server.wait_ready(150)
        host = Host([state], keep=False)
        host.refresh()
        assert values(host, REGISTERED) == [1, 1]

        mooncake.kill_client()
        (detach,) = server.tell("detach")
        assert (detach["success"], detach["stores"]) == (True, [])
        (attach,) = server.tell("attach", mooncake.extra_config())
        assert not attach["success"]
        host.refresh()
        found = [(row["stage"], row["cause"]) for row in failing(host)]
        assert found == [("setup", "client_unreachable")]

        mooncake.start_client()
        (attach,) = server.tell("attach", mooncake.extra_config())
        assert attach["success"]
        host.refresh()
        assert failing(host) == []
        assert values(host, REGISTERED) == [1, 1]
        assert server.terminate(60) == 0
