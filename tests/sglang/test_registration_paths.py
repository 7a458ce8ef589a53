"""Every way to register memory beside those of ``MooncakeStore``, by SGLang's own classes.

Mooncake's transfer engine and stores are real; the other vendors' libraries are stand-ins of the
bench (``vendors.py``), which answer as SGLang's call sites expect, or refuse.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench.harness import BENCH, run_python
from conftest import Run, releases
from test_second_plugin import plugin

SAMPLE = ("0.5.14", "0.5.23")

A_WORKER = """
from dataclasses import replace
from hicache_obs import recorder

def register():
    known = {"hicache": True, "storage_backend": "mooncake", "mode": "embedded"}
    recorder.get().worker = replace(recorder.UNKNOWN_WORKER, **known)
"""
"""Stands in for ``Scheduler.__init__``: these paths are walked without a scheduler."""


@dataclass
class Walk:
    """What each case said of itself, and what was recorded meanwhile."""

    cases: dict[str, dict[str, Any]]
    run: Run

    def said(self) -> list[tuple[Any, ...]]:
        """What SGLang did: returned, raised; without addresses."""
        kept = ("case", "absent", "ok", "returned", "error_type", "registered_bytes")
        return [tuple(case.get(key) for key in kept) for case in self.cases.values()]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kept: dict[tuple[str, ...], Walk] = {}

    def go(release: str, *options: str, **env: str) -> Walk:
        key = (release, *options, *env.values())
        if key not in kept:
            folder = tmp_path_factory.mktemp("walk")
            worker = plugin(folder, "a_worker", "a_worker:register", A_WORKER)
            done = run_python(
                release,
                BENCH / "registration_paths.py",
                options,
                env={"HICACHE_OBS_STATE_DIR": str(folder / "state"), **env},
                plugin_dirs=[worker],
                timeout=300,
            )
            lines = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
            assert lines, done.stderr[-3000:]
            run = Run(True, 0, done.stderr, [], Path(folder / "state"), "", "")
            kept[key] = Walk({line["case"]: line for line in lines}, run)
        return kept[key]

    return go


@pytest.mark.parametrize("fails", ["", "--fails"])
@pytest.mark.parametrize("release", releases(sample=SAMPLE))
def test_sglang_behaves_alike_with_and_without_the_plug_in(
    walk: Any, release: str, fails: str
) -> None:
    options = (fails,) if fails else ()
    assert walk(release, "--plugins", *options).said() == walk(release, *options).said()
    assert not walk(release, *options).run.journals
    assert walk(release, "--plugins", *options).run.of("obs_error") == []


@pytest.mark.parametrize("release", releases(sample=SAMPLE))
def test_the_transfer_engines_answers(walk: Any, release: str) -> None:
    """SGLang's wrapper logs a failure at debug level (``batch_register`` in all releases)."""
    seen = walk(release, "--plugins").run
    told = seen.of("registration", mode="transfer_engine", role="none", pool="")
    by_outcome = [(e["api"], e["outcome"], e["code"], e["cause"]) for e in told]
    assert ("register_memory", "success", "0", "") in by_outcome
    assert ("batch_register_memory", "success", "0", "") in by_outcome
    assert ("register_memory", "failure", "-7", "overlap") in by_outcome
    assert ("batch_register_memory", "failure", "-7", "overlap") in by_outcome
    [first] = told[:1]
    assert first["registered_bytes"] == first["bytes"] == 512 << 10
    gone = seen.of("unregistration", mode="transfer_engine")
    assert gone[0]["bytes"] == 512 << 10


@pytest.mark.parametrize("release", releases("0.5.20", "0.5.21", "0.5.22", "0.5.23", sample=SAMPLE))
def test_the_direct_linkers_buffers(walk: Any, release: str) -> None:
    seen = walk(release, "--plugins")
    case = seen.cases["linker.mooncake"]
    told = seen.run.of("registration", mode="direct_linker")
    assert case["ok"]
    assert sum(event["bytes"] for event in told) == case["registered_bytes"] > 0
    assert {event["outcome"] for event in told} == {"success"}


@pytest.mark.parametrize("release", releases(sample=SAMPLE))
def test_the_embedding_stores_buffer(walk: Any, release: str) -> None:
    seen = walk(release, "--plugins")
    told = seen.run.of("registration", mode="embedded")
    assert {(e["role"], e["pool"], e["outcome"]) for e in told} == {("none", "", "success")}
    assert sum(event["bytes"] for event in told) == seen.cases["embedding"]["registered_bytes"] > 0


REGISTERING = {"nixl": "0.5.13", "simm": "", "eic": "", "npu_memcache": "0.5.20", "mori": "0.5.15"}


@pytest.mark.parametrize("release", releases(sample=SAMPLE))
def test_other_backends_register_the_pool(walk: Any, release: str) -> None:
    seen, refused = walk(release, "--plugins"), walk(release, "--plugins", "--fails")
    looked_at = 0
    for backend in REGISTERING:
        case = seen.cases[f"storage.{backend}"]
        if case.get("absent") or not case["registered_bytes"]:
            continue
        looked_at += 1
        told = seen.run.of("registration", mode=backend)
        assert told, backend
        # eic registers a buffer of its own too, mori whole huge pages.
        assert 0 < told[0]["bytes"] <= case["registered_bytes"], backend
        assert told[0]["outcome"] == "success", backend
        assert (told[0]["role"], told[0]["pool"]) == ("target", "kv"), backend
        failed = refused.run.of("registration", mode=backend, outcome="failure")
        assert failed, backend
        assert failed[0]["cause"] == "refused", backend
    assert looked_at >= 2


@pytest.mark.parametrize("release", releases("0.5.14", "0.5.18", "0.5.23", sample=("0.5.14",)))
def test_a_buffer_to_copy_through_is_no_registration_of_the_pool(walk: Any, release: str) -> None:
    """NIXL takes a pool of this layout through a buffer of its own, which it registers."""
    seen = walk(release, "--plugins", "--only", "storage.nixl", BENCH_LAYOUT="layer_first")
    case = seen.cases["storage.nixl"]
    assert case["ok"], case
    assert case["registered_bytes"] > 0
    assert seen.run.of("registration", mode="nixl") == []
    assert seen.run.of("call_returned", api="register_mem_pool_host", outcome="success")
