"""The commands, on SGLang as it lies on disk and on the real demonstration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.harness import RELEASES, sglang_path
from conftest import releases

COMMAND = [sys.executable, "-m", "hicache_obs.cli"]
DRAFT_STATE = {
    "0.5.11": "note",
    "0.5.12": "note",
    "0.5.13": "ok",
    "0.5.14": "ok",
}


def hicache_obs(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
        timeout=300,
    )


def findings(*arguments: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = hicache_obs("doctor", "--json", *arguments, **env)
    rows = json.loads(done.stdout)["findings"]
    return done.returncode, {row["check"]: row for row in rows}


@pytest.mark.parametrize("release", releases(*RELEASES))
def test_doctor_knows_the_release(release: str, tmp_path: Path) -> None:
    env = {"HICACHE_OBS_STATE_DIR": str(tmp_path)}
    code, found = findings("--sglang-path", str(sglang_path(release)), **env)

    assert code == 0, found
    assert found["SGLang"]["text"] == f"{release}, tested"
    assert found["hook points"]["state"] == "ok"
    assert found["draft builder"]["state"] == DRAFT_STATE.get(release, "ok")
    fixed = "fixed upstream" in found["draft builder"]["text"]
    assert fixed == (release not in DRAFT_STATE)
    assert "left of" in found["memory"]["text"]
    mode, owner = tmp_path.stat().st_mode & 0o7777, tmp_path.owner()
    readers = f"{mode:04o} {owner}:{tmp_path.group()}, so an exporter reads it as {owner}"
    assert found["state directory"]["text"] == f"{tmp_path}, writable; {readers}"
    half = found["MHA target"]["state"] == "note"
    assert half == (release in ("0.5.21", "0.5.22", "0.5.23"))
    assert "asymmetric" in found["asymmetric drafts"]["text"]


def test_doctor_finds_problems() -> None:
    env = {"HICACHE_OBS_DRAFT_FIX": "off", "HICACHE_OBS_STATE_DRI": "/x"}
    code, found = findings("--sglang-path", str(sglang_path("0.5.14")), **env)
    assert code == 1
    assert found["draft builder"]["state"] == "problem"
    assert "HICACHE_OBS_STATE_DIR" in found["settings"]["text"]


def test_doctor_finds_a_moved_name(tmp_path: Path) -> None:
    real = sglang_path("0.5.14") / "sglang"
    package = tmp_path / "sglang"
    names = (
        "_version.py",
        "srt/managers/cache_controller.py",
        "srt/managers/scheduler.py",
        "srt/mem_cache/kv_cache_builder.py",
    )
    for name in names:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text((real / name).read_text())
    builder = package / "srt/mem_cache/kv_cache_builder.py"
    builder.write_text(builder.read_text().replace("maybe_register_hicache_draft", "moved"))

    code, found = findings("--sglang-path", str(tmp_path))

    assert code == 1
    assert "maybe_register_hicache_draft" in found["hook points"]["text"]
    assert found["draft builder"]["state"] == "problem"


def test_doctor_that_cannot_look_says_so(tmp_path: Path) -> None:
    done = hicache_obs("doctor", "--sglang-path", str(tmp_path))
    assert done.returncode == 2
    assert "unseen\tSGLang\t" in done.stdout
    assert "holds no SGLang" in done.stdout
    assert "\tmemory\t" in done.stdout, "the rest is told all the same"
    assert hicache_obs("doctor").returncode == 2, "no SGLang is installed for this Python"


def test_demo_without_its_sglang_fails_and_says_what_to_do(tmp_path: Path) -> None:
    done = hicache_obs("demo", "--cache", str(tmp_path))
    assert done.returncode == 1
    assert "0.5.14" in done.stdout
    assert "fetch.py" in done.stdout


@pytest.mark.full
def test_demo_shows_the_failure_and_the_fix() -> None:
    done = hicache_obs("demo")
    assert done.returncode == 0, done.stdout
    assert "What the exporter serves of it" in done.stdout
    assert 'cause="foreign_buffer"' in done.stdout
    assert 'hicache_draft_builder_info{state="applied"} 1' in done.stdout
    assert "All steps did what they say" in done.stdout
