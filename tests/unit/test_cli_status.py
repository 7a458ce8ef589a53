"""``status``: its JSON, what cannot be read, and what a terminal obeys; as a real process."""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journals import BUILT, FAILED, MISMATCH, READY, REFUSED, THE_BUG, WORKER

from hicache_obs import events as ev
from hicache_obs import runs, wire

EVIL = "a\x1b]0;owned\x07b"
COMMAND = [sys.executable, "-m", "hicache_obs.cli", "status"]
HOLD = """
import sys
from pathlib import Path
from hicache_obs import runs
fd = runs.hold_alive_lock(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def journal(directory: Path, *events: ev.Event, number: int = 1) -> str:
    """Write a run's journal; returns the run's name. Dead unless its lock is held."""
    boot = runs.boot_id()
    name = f"{boot}-{number}-{number}-{number:08x}"
    started = ev.RunStarted(run=name, boot_id=boot, pid=number, host="node", boottime_ns=number)
    lines = [wire.to_line(e, n, 1e3) for n, e in enumerate((started, WORKER, *events), 1)]
    runs.journal_path(directory, name).write_bytes(b"".join(lines))
    return name


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _keys(value: Any) -> set[str]:
    """All keys of a JSON value, at any depth."""
    if isinstance(value, list):
        return set().union(*map(_keys, value))
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values()))
    return set()


def test_every_key_of_the_json_is_described(
    tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    entered = ev.CallEntered(call=9, api="a", role="target", pool="kv", bytes=1, since=999.0)
    name = journal(tmp_path, BUILT, MISMATCH, REFUSED, entered)
    holder = start_python(HOLD, tmp_path, name)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    found = json.loads(run("--journal.dir", tmp_path, "--json").stdout)
    (rank,) = found["servers"][0]["ranks"]
    assert rank["alive"] is True
    assert all(rank[name] for name in ("failures", "mismatches", "pools", "calls"))
    documentation = importlib.import_module("hicache_obs.cli.status").__doc__
    described = set(re.findall(r"``(\w+)``", str(documentation)))
    words = {"failing", "starting", "up", "stopped", "read", "waiting", "unreadable"}
    assert _keys(found) == described - words


def test_a_missing_directory_is_said_once(tmp_path: Path) -> None:
    done = run("--journal.dir", tmp_path / "no")
    assert done.returncode == 2
    told = f"hicache-obs status: {tmp_path / 'no'} is waiting: it does not exist yet\n"
    assert (done.stdout, done.stderr) == ("", told)


def test_a_journal_that_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    journal(tmp_path, READY)
    other = runs.journal_path(tmp_path, "abc-2-2-00000002")
    other.mkdir()
    done = run("--journal.dir", tmp_path)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hicache-obs status: {other} cannot be read")
    assert f"directory\t{tmp_path}\tread\t" in done.stdout


def test_a_journal_that_cannot_be_read_is_no_server(tmp_path: Path) -> None:
    """It may tell of anything, so that all is well cannot be said."""
    journal(tmp_path, READY)
    other = runs.journal_path(tmp_path, f"{runs.boot_id()}-2-2-00000002")
    other.mkdir()
    done = run("--journal.dir", tmp_path)
    assert done.returncode == 2
    assert str(other) in done.stderr
    facts = [line.split("\t") for line in done.stdout.splitlines()]
    assert [fact[1] for fact in facts if fact[0] == "server"] == ["node:30000"]
    assert run("--journal.dir", tmp_path, "--json").returncode == 2
    journal(tmp_path, *THE_BUG, number=3)
    assert run("--journal.dir", tmp_path).returncode == 1


def test_a_pipe_that_is_closed(tmp_path: Path) -> None:
    journal(tmp_path, *THE_BUG)
    command = f"{' '.join(COMMAND)} --journal.dir {tmp_path} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.split("\t")[:3] == ["server", "node:30000", "failing"]
    assert done.stderr == ""


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_a_text_cannot_command_the_terminal(terminal: bool, tmp_path: Path) -> None:
    journal(tmp_path, replace(REFUSED, error=EVIL), replace(FAILED, error=EVIL))
    command = [*COMMAND, "--journal.dir", str(tmp_path)]
    if not terminal:
        text = subprocess.run(command, capture_output=True, check=False).stdout
    else:
        ours, theirs = pty.openpty()
        env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
        with subprocess.Popen(command, stdout=theirs, env=env) as process:
            os.close(theirs)
            text = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # the other side is closed
                    break
                if not part:
                    break
                text += part
        os.close(ours)
        assert process.returncode == 1
    assert rb"a\x1b]0;owned\x07b" in text
    assert b"\x1b]" not in text
    assert b"\x07" not in text
