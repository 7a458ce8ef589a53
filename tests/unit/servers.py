"""Snapshots to look at: a night with the bug, and a crowd with hostile names."""

from __future__ import annotations

from hicache_obs.exporter.fold import Failure
from hicache_obs.exporter.view import (
    FAILING,
    STARTING,
    UP,
    CallView,
    MismatchView,
    PoolView,
    RankView,
    ServerView,
    Snapshot,
)

NOW = 1_796_095_380.0
GIB = 1 << 30
TARGET = PoolView("target", "kv", "mooncake", "mooncake", 64 * GIB, 524_288, registered=True)
DRAFT = PoolView("draft", "draft", "default", "default", GIB, 524_288, registered=False)
REFUSED = Failure(
    time=NOW - 190,
    stage="registration",
    mode="standalone",
    role="draft",
    pool="draft",
    allocator="default",
    bytes=GIB,
    code="-1",
    cause="foreign_buffer",
    error_type="RuntimeError",
    error="Failed to register buffer to Mooncake Store, error code: -1",
)
MISMATCH = MismatchView(
    "draft", "draft", "mooncake", "default", "draft_differs_from_target", harmful=True
)


def rank(number: int, state: str, **given: object) -> RankView:
    facts: dict[str, object] = {
        "run": f"run-{number}",
        "rank": f"tp{number} pp0",
        "pid": 4000 + number,
        "alive": state != FAILING,
        "state": state,
        "started": NOW - 240,
        "last_event": NOW - 190,
        "sglang_version": "0.5.14",
        "mooncake_version": "0.3.13.post1",
        "torch_version": "2.9.1",
        "mode": "standalone",
        "draft_builder": "",
        "start_cause": "",
        "failures": (),
        "mismatches": (),
        "pools": (TARGET,),
        "calls": (),
    }
    return RankView(**{**facts, **given})  # type: ignore[arg-type]  # one table of facts


def failing(number: int) -> RankView:
    return rank(
        number,
        FAILING,
        failures=(REFUSED,),
        mismatches=(MISMATCH,),
        pools=(TARGET._replace(registered=False), DRAFT),
    )


def server(port: int, state: str, *ranks: RankView, **given: str) -> ServerView:
    facts = {"host": "gpu-node-07", "namespace": "llm", "pod": "", "model_name": "Qwen/Qwen3-32B"}
    facts |= given
    return ServerView(port=str(port), state=state, ranks=ranks, **facts)


def a_night() -> Snapshot:
    """SGLang 0.5.14 with EAGLE and a standalone client died; another server hangs; one is up."""
    since = CallView("register_buffer", "target", "kv", 1 << 40, NOW - 260)
    peer = rank(3, FAILING, start_cause="peer", pools=(TARGET._replace(registered=False),))
    return Snapshot(
        NOW,
        (
            server(
                30000,
                FAILING,
                *(failing(number) for number in range(3)),
                peer,
                model_name="meta-llama/Llama-3.1-8B-Instruct",
            ),
            server(30001, STARTING, rank(0, STARTING, calls=(since,), pools=())),
            server(30002, UP, rank(0, UP)),
        ),
        (("/var/lib/hicache-obs", "read", ""),),
        (),
    )


def crowd() -> Snapshot:
    """Twenty failing servers of sixteen ranks, with names that no page expects."""
    evil = "<script>alert(1)</script>" + "x" * 200
    servers = tuple(
        server(
            30000 + port,
            FAILING,
            *(failing(number) for number in range(16)),
            model_name=evil,
            host=f"node-{'y' * 60}",
            pod=evil,
        )
        for port in range(20)
    )
    return Snapshot(NOW, servers, ((f"/{'z' * 200}", "unreadable", "Permission denied"),), (evil,))
