"""What tests of several starts share: how to start a server, and what to look at afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import Mooncake, free_port, start_server
from conftest import Run
from journals import served

from hicache_obs.exporter.host import Host

SAMPLE = ("0.5.14", "0.5.23")
MLA: dict[str, Any] = {"target": "mla", "draft": "mha"}
"""Registers on every release; an MHA target does not on 0.5.21 and later."""
UP = "hicache_worker_up"
FAILURE = "hicache_failure_active"
REGISTERED = "hicache_pool_registered"
BYTES = "hicache_registered_bytes"
OFFLOAD: dict[str, Any] = {"disaggregation": "decode", "decode_offload": True, "target": "mla"}

NO_STORE: dict[str, Any] = {"storage_backend": "none"}
EVERY_TREE = ("0.5.13", "0.5.14", "0.5.16", "0.5.18", "0.5.20", "0.5.21", "0.5.23")
"""The releases between which SGLang's attach and detach differ."""


def embedded(mooncake: Mooncake) -> dict[str, Any]:
    """The configuration of an embedded store; it takes pools of any allocator."""
    return mooncake.extra_config(standalone=False)


def nowhere() -> dict[str, Any]:
    """The configuration of a standalone client that is not there."""
    address = f"127.0.0.1:{free_port()}"
    return {
        "client_server_address": address,
        "master_server_address": address,
        "standalone_storage": True,
        "check_server": False,
    }


def failures(run: Run) -> list[dict[str, str]]:
    """The labels of the failures that the server's own /metrics serves."""
    return [labels for _, labels, value in run.samples(FAILURE) if value == 1]


def failing(host: Host) -> list[dict[str, str]]:
    """The labels of the failures that an exporter serves."""
    return [dict(labels) for labels, value in served(host).get(FAILURE, {}).items() if value]


def total(run: Run, name: str, **labels: str) -> float:
    """The sum of a metric's rows: those that ended are 0 or gone."""
    return sum(value for _, _, value in run.samples(name, **labels))


@dataclass
class Step(Run):
    """What a server served after one of its steps, and what each rank answered to it."""

    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def answer(self) -> dict[str, Any]:
        """That of the only rank, and what stood after it (bench/attaching.py)."""
        (only,) = self.answers
        return only


Steps = Callable[..., list[Step]]


def steps_of(mooncake: Mooncake, folder: Callable[[str], Path]) -> Steps:
    """A function that starts a server and lets it take step after step, each a name and the extra
    config of its attach; each distinct course runs once."""
    kept: dict[str, list[Step]] = {}

    def take(release: str, *steps: tuple[str, dict[str, Any] | None], **how: Any) -> list[Step]:
        key = json.dumps([release, steps, how], sort_keys=True)
        if key not in kept:
            kept[key] = _take(mooncake, folder("steps"), release, steps, dict(how))
        return kept[key]

    return take


def _take(
    mooncake: Mooncake,
    folder: Path,
    release: str,
    steps: tuple[tuple[str, dict[str, Any] | None], ...],
    how: dict[str, Any],
) -> list[Step]:
    state, multiproc = folder / "state", folder / "multiproc"
    multiproc.mkdir()
    env = {"HICACHE_OBS_STATE_DIR": str(state), "PROMETHEUS_MULTIPROC_DIR": str(multiproc)}
    env |= how.pop("env", {})
    store = mooncake if how.get("storage_backend", "mooncake") == "mooncake" else None
    taken = []
    with start_server(release, store, env, folder=folder, **how) as server:
        server.wait_ready(150)
        for name, config in steps:
            answers = server.tell(name, config)
            assert [answer["raised"] for answer in answers] == [None] * len(answers), answers
            found = {"log": server.log, "reports": server.reports(), "scraped": server.scrape()}
            end = {"returncode": 0, "state_dir": state, "left": ""}
            taken.append(Step(ready=True, **found, **end, answers=answers))
        assert server.terminate(60) == 0
    return taken
