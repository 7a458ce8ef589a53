"""The hook table against the source of every release, and what is said of one that moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bench.harness import RELEASES, sglang_path
from conftest import releases
from upstream import findings, main


@pytest.mark.parametrize("release", releases())
def test_the_table_holds(release: str) -> None:
    assert findings(sglang_path(release), release) == []


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host pools and stores of the newest release, to be changed."""
    root = tmp_path_factory.mktemp("moved")
    for part in ("mem_cache", "managers", "distributed", "disaggregation"):
        source = sglang_path(RELEASES[-1]) / "sglang" / "srt" / part
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, root / "sglang" / "srt" / part, ignore=ignored)
    return root


FILES = {"common.py", "mamba.py", "hicache_storage.py"}

MOVES = {
    "def get_allocator_from_storage(allocator_type)": (
        "def get_allocator_from_storage(kind)",
        "get_allocator_from_storage: parameter 0 is not 'allocator_type'",
    ),
    "def _cuda_host_register(": ("def _register_host(", "_cuda_host_register: is not there"),
    "class MambaPoolHost(HostKVCache)": (
        "class StatePool(HostKVCache)",
        "host pool class StatePool is not known",
    ),
    'KV = "kv"': ('KV = "key_value"', "PoolName 'key_value' is not known"),
}


@pytest.mark.parametrize("before", MOVES)
def test_what_moved_is_named(newest: Path, before: str) -> None:
    after, said = MOVES[before]
    texts = {f: f.read_text(encoding="utf-8") for f in sorted(newest.rglob("*.py"))}
    [file, *_] = [f for f in texts if before in texts[f] and f.name in FILES]
    text = file.read_text(encoding="utf-8")
    assert findings(newest, RELEASES[-1]) == []
    try:
        file.write_text(text.replace(before, after), encoding="utf-8")
        assert any(said in line for line in findings(newest, RELEASES[-1]))
    finally:
        file.write_text(text, encoding="utf-8")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0.5.14"]) == 0
    assert "all as the table says" in capsys.readouterr().out
    assert main(["no release"]) == 2
