"""``events``: order and memory over many journals, what cannot be read, what a terminal obeys."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from journals import READY, REFUSED, WORKER

from hicache_obs import events as ev
from hicache_obs import runs, wire
from hicache_obs.cli.events import events
from hicache_obs.exporter.tail import JournalTail

COMMAND = [sys.executable, "-m", "hicache_obs.cli", "events"]


def journal(
    directory: Path,
    number: int,
    timed: Iterable[tuple[float, ev.Event]] = (),
    *,
    begin: float = 1000.0,
    host: str = "node",
    pod: str = "",
    port: str = "30000",
) -> Path:
    """The journal of a run that ended."""
    name = f"abc-{number}-{number}-{number:08x}"
    started = ev.RunStarted(run=name, boot_id="abc", pid=number, host=host, pod=pod)
    starting = replace(WORKER, server_port=port, tp_rank=str(number))
    lines = [(begin, started), (begin, starting), *timed]
    path = runs.journal_path(directory, name)
    path.write_bytes(b"".join(wire.to_line(e, n, t) for n, (t, e) in enumerate(lines, 1)))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(events, [str(argument) for argument in arguments])


def rows(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_lines_that_take_turns(tmp_path: Path) -> None:
    """Four journals, every line in the one after."""
    for number in range(4):
        mine = [(1000.0 + number + 4 * turn, READY) for turn in range(1, 20)]
        journal(tmp_path, number, mine)
    found = rows(run("--journal.dir", tmp_path, "--json", "--kind", "worker_ready"))
    assert [row["time"] for row in found] == [1004.0 + n for n in range(76)]


def test_a_journal_is_read_when_its_turn_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs one after another, one at a time is in memory."""
    for number in range(1, 5):
        journal(tmp_path, number, [(1000.0 * number + 5, READY)], begin=1000.0 * number)
    opened: list[str] = []
    read = JournalTail.read

    def note(tail: JournalTail) -> object:
        opened.append(tail.path.name.split("-")[1])
        return read(tail)

    monkeypatch.setattr(JournalTail, "read", note)
    seen: list[tuple[object, int]] = []
    module = sys.modules["hicache_obs.cli.events"]
    monkeypatch.setattr(
        module, "_show", lambda _console, line, *_: seen.append((line.rank, len(opened)))
    )
    run("--journal.dir", tmp_path, "--kind", "worker_ready")
    assert seen == [(f"tp{number} pp0", number) for number in range(1, 5)]


def test_journals_of_the_same_time_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Of each no more than 64 KiB is read before the next one's turn."""
    for number in range(20):
        path = journal(tmp_path, number, [(1001.0 + turn, REFUSED) for turn in range(2000)])
    assert path.stat().st_size > 1 << 19
    tracemalloc.start()
    try:
        assert run("--journal.dir", tmp_path, "--kind", "worker_ready").exit_code == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20


def test_a_journal_without_a_readable_beginning(tmp_path: Path) -> None:
    broken = journal(tmp_path, 1, [(2000.0, READY)], begin=1000.0)
    broken.write_bytes(b"\xff\n" + broken.read_bytes())
    journal(tmp_path, 2, [(1500.0, READY)], begin=1000.0)
    journal(tmp_path, 3).write_bytes(b"")
    found = run("--journal.dir", tmp_path, "--json", "--kind", "worker_ready")
    assert [row["time"] for row in rows(found)] == [1500.0, 2000.0]
    assert [line.split(": ")[1] for line in found.stderr.splitlines()] == [str(broken)]


def test_json_begins_with_who_and_when(tmp_path: Path) -> None:
    journal(tmp_path, 1, [(1005.5, REFUSED)])
    (row,) = rows(run("--journal.dir", tmp_path, "--json", "--kind", "registration"))
    assert list(row)[:7] == ["time", "run", "host", "server_port", "rank", "seq", "kind"]
    assert (row["time"], row["seq"], row["cause"]) == (1005.5, 3, "foreign_buffer")


def test_a_text_cannot_command_the_terminal(tmp_path: Path) -> None:
    evil = replace(REFUSED, error="a\x1b]0;owned\x07\tb\rc\u2028d", role="\x1b[2J")
    journal(tmp_path, 1, [(1001.0, evil)], host="no\x1bde")
    (line,) = run("--journal.dir", tmp_path, "--kind", "registration").stdout.split("\n")[:-1]
    assert line.isprintable()
    assert r'error="a\u001b]0;owned\u0007\tb\rc\u2028d"' in line
    assert r'role="\u001b[2J"' in line
    assert r" no\x1bde:30000 " in line


@pytest.mark.parametrize(
    ("server", "port"),
    [("[fe80::1]:30000", "30000"), ("fe80::1:30000", "30000"), ("[fe80::2]", ""), ("fe80::2", "")],
)
def test_names_of_servers(server: str, port: str, tmp_path: Path) -> None:
    journal(tmp_path, 1, [(1001.0, READY)], host="fe80::1")
    journal(tmp_path, 2, [(1001.0, READY)], host="fe80::2", port="")
    found = run("--journal.dir", tmp_path, "--json", "--kind", "worker_ready", "--server", server)
    assert [row["server_port"] for row in rows(found)] == [port]


def test_a_server_by_its_pod(tmp_path: Path) -> None:
    """With host network a page names the pod, and the journal's host is the node."""
    journal(tmp_path, 1, [(1001.0, READY)], pod="sglang-0")
    journal(tmp_path, 2, [(1001.0, READY)], pod="sglang-1", port="30001")
    found = run("--journal.dir", tmp_path, "--json", "--server", "sglang-1:30001")
    assert {row["server_port"] for row in rows(found)} == {"30001"}


def test_a_server_that_nobody_knows(tmp_path: Path) -> None:
    journal(tmp_path, 1, [(1001.0, READY)])
    found = run("--journal.dir", tmp_path, "--server", "typo:1")
    assert found.exit_code == 2
    assert found.stdout == ""
    assert found.stderr == (
        "hicache-obs events: no journal is of 'typo:1'; known servers: node:30000\n"
    )


def test_a_time_that_is_empty(tmp_path: Path) -> None:
    done = run("--journal.dir", tmp_path, "--since", "")
    assert done.exit_code == 2
    assert "'' is no time; write for example 30m, 1h, 2d or" in done.stderr


def test_a_directory_that_is_missing_beside_one_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    journal(tmp_path / "a", 1)
    done = run("--journal.dir", tmp_path / "a", "--journal.dir", tmp_path / "b")
    assert done.exit_code == 0
    assert done.stderr == f"hicache-obs events: {tmp_path / 'b'}: No such file or directory\n"


def test_what_cannot_be_read_is_said_once_while_following(tmp_path: Path) -> None:
    """A missing directory, and a journal that is none, over several looks."""
    (tmp_path / "a").mkdir()
    fake = runs.journal_path(tmp_path / "a", "abc-5-5-00000005")
    fake.mkdir()
    process = subprocess.Popen(
        [*COMMAND, "--journal.dir", tmp_path / "a", "--journal.dir", tmp_path / "b", "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        for number in (1, 2, 3):  # each line printed is a look that is over
            journal(tmp_path / "a", number)
            assert select.select([process.stdout], [], [], 10)[0]
            assert b" run " in process.stdout.readline()
            assert b" worker_starting " in process.stdout.readline()
            time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 0
    assert sorted(said.decode().splitlines()) == [
        f"hicache-obs events: {fake}: not a regular file",
        f"hicache-obs events: {tmp_path / 'b'}: No such file or directory",
    ]
