"""``status``, ``events`` and ``forget``: in a pipe, as JSON, in a terminal, with bad input."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from journals import BUILT, ENTERED, MISMATCH, READY, REFUSED, THE_BUG, Worker, values

from hicache_obs import runs
from hicache_obs.cli import main
from hicache_obs.exporter.host import Host

COMMAND = [sys.executable, "-m", "hicache_obs.cli"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def lines(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()]


# status


def test_status_in_a_pipe(worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker(model_name="m").write(*THE_BUG).die()
    worker(port="30001", model_name="m").write(BUILT, replace(ENTERED, call=3), READY)
    done = run("status", "--journal.dir", tmp_path)
    assert done.exit_code == 1
    first, second = "node:30000", "node:30001"
    error = "Failed to register buffer to Mooncake Store, error code: -1"
    since = "1970-01-01 00:16:39Z"
    refused = ("registration", "standalone", "draft", "draft", "default", "1114112", "-1")
    assert lines(done) == [
        ["server", first, "failing", "m", "", ""],
        ["failure", first, "tp0 pp0", *refused, "foreign_buffer", "RuntimeError", error],
        ["mismatch", first, "tp0 pp0", "draft", "draft", "mooncake", "default", "harmful"],
        ["pool", first, "tp0 pp0", "failing", "draft", "draft", "default", "1114112", "no"],
        ["server", second, "up", "m", "", ""],
        ["call", second, "tp0 pp0", "register_buffer", "draft", "draft", "1114112", since],
        ["pool", second, "tp0 pp0", "up", "draft", "draft", "default", "1114112", "no"],
        ["directory", str(tmp_path), "read", ""],
    ]


@pytest.mark.parametrize(
    ("events", "code"),
    [((READY,), 0), (THE_BUG, 1), ((BUILT, MISMATCH, READY), 1), ((BUILT,), 0)],
    ids=["up", "failing", "harmful mismatch", "starting"],
)
def test_status_ends_with_what_it_saw(
    events: tuple[object, ...], code: int, worker: Callable[..., Worker], tmp_path: Path
) -> None:
    worker().write(*events)  # type: ignore[arg-type]  # events
    assert run("status", "--journal.dir", tmp_path).exit_code == code


def test_status_as_json(worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker().write(*THE_BUG).die()
    found = json.loads(run("status", "--journal.dir", tmp_path, "--json").stdout)
    assert found["v"] == 1
    assert found["directories"] == [{"path": str(tmp_path), "state": "read", "reason": ""}]
    (server,) = found["servers"]
    assert (server["host"], server["port"], server["state"]) == ("node", "30000", "failing")
    (rank,) = server["ranks"]
    assert rank["failures"][0]["cause"] == "foreign_buffer"
    assert rank["mismatches"][0]["harmful"] is True
    assert rank["pools"][0]["registered"] is False


def test_status_that_cannot_look(tmp_path: Path) -> None:
    done = run("status", "--journal.dir", tmp_path / "a", "--journal.dir", tmp_path / "b")
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        f"hicache-obs status: {tmp_path / name} is waiting: it does not exist yet" for name in "ab"
    ]


def test_status_changes_nothing(worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker().write(*THE_BUG).die()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    run("status", "--journal.dir", tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_status_in_a_terminal(worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker().write(*THE_BUG).die()
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    command = [*COMMAND, "status", "--journal.dir", str(tmp_path)]
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
    assert b"node:30000 is failing" in text
    assert b"\x1b[1;31m" in text
    assert b"give the pool Mooncake's allocator" in text


# events


def test_events_of_all_journals_by_time(worker: Callable[..., Worker], tmp_path: Path) -> None:
    first, second = worker(tp="0"), worker(tp="1")
    first.write(BUILT, time=1002.0).write(READY, time=1006.0)
    second.write(BUILT, time=1004.0)
    found = run("events", "--journal.dir", tmp_path, "--kind", "pool", "--kind", "worker_ready")
    assert found.exit_code == 0
    starts = [line.split()[:6] for line in found.stdout.splitlines()]
    assert starts == [
        ["1970-01-01", "00:16:42Z", "node:30000", "tp0", "pp0", "pool"],
        ["1970-01-01", "00:16:44Z", "node:30000", "tp1", "pp0", "pool"],
        ["1970-01-01", "00:16:46Z", "node:30000", "tp0", "pp0", "worker_ready"],
    ]


def test_a_clock_that_is_set_back_does_not_turn_a_journal_round(
    worker: Callable[..., Worker], tmp_path: Path
) -> None:
    worker().write(BUILT, time=9000.0).write(MISMATCH, time=1800.0).write(READY, time=1801.0)
    found = run("events", "--journal.dir", tmp_path, "--json")
    kinds = [json.loads(line)["kind"] for line in found.stdout.splitlines()]
    assert kinds == ["run", "worker_starting", "pool", "mismatch", "worker_ready"]


def test_events_as_json(worker: Callable[..., Worker], tmp_path: Path) -> None:
    run_ = worker().write(REFUSED, time=1005.5)
    found = run("events", "--journal.dir", tmp_path, "--json", "--kind", "registration")
    (line,) = found.stdout.splitlines()
    row = json.loads(line)
    assert row["run"] == run_.name
    told = {"time": 1005.5, "host": "node", "server_port": "30000", "rank": "tp0 pp0", "seq": 3}
    assert (told | {"cause": "foreign_buffer", "code": "-1"}).items() <= row.items()


@pytest.mark.parametrize(
    ("since", "count"), [("1h", 1), ("90s", 0), ("2000-01-01", 1), ("2000-01-01T00:00Z", 1)]
)
def test_events_since(
    since: str, count: int, worker: Callable[..., Worker], tmp_path: Path
) -> None:
    worker().write(READY, time=time.time() - 600)
    found = run("events", "--journal.dir", tmp_path, "--kind", "worker_ready", "--since", since)
    assert len(found.stdout.splitlines()) == count


def test_events_of_one_server(worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker(port="1").write(READY)
    worker(port="2").write(READY)
    found = run("events", "--journal.dir", tmp_path, "--server", "node:2", "--json")
    assert {json.loads(line)["server_port"] for line in found.stdout.splitlines()} == {"2"}


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        (("--since", "yesterday"), "'yesterday' is no time; write for example 30m, 1h, 2d or"),
        (("--kind", "pools"), "'pools' is no kind; there are run, worker_starting"),
    ],
)
def test_bad_flags_of_events(flag: tuple[str, str], told: str, tmp_path: Path) -> None:
    done = run("events", "--journal.dir", tmp_path, *flag)
    assert done.exit_code == 2
    assert told in done.stderr


def test_events_without_a_directory(tmp_path: Path) -> None:
    done = run("events", "--journal.dir", tmp_path / "no")
    assert done.exit_code == 2
    assert done.stderr == f"hicache-obs events: {tmp_path / 'no'}: No such file or directory\n"


def test_a_broken_line_is_named_and_the_rest_goes_on(
    worker: Callable[..., Worker], tmp_path: Path
) -> None:
    one = worker()
    with one.path.open("ab") as file:
        file.write(b"\xff\n")
    one.write(READY)
    done = run("events", "--journal.dir", tmp_path)
    assert done.exit_code == 0
    assert done.stderr.startswith(f"hicache-obs events: {one.path}: not JSON")
    assert done.stdout.splitlines()[-1].split()[5] == "worker_ready"


def test_events_into_a_pipe_that_is_closed(worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker().write(*[REFUSED] * 5000)
    command = f"{' '.join(COMMAND)} events --journal.dir {tmp_path} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_events_are_followed(worker: Callable[..., Worker], tmp_path: Path) -> None:
    """New lines of known journals and of new ones, until Ctrl-C."""
    first = worker()
    process = subprocess.Popen(
        [*COMMAND, "events", "--journal.dir", str(tmp_path), "--follow", "--kind", "worker_ready"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    first.write(READY, time=1001.0)
    assert "00:16:41Z" in process.stdout.readline()
    worker(port="2").write(READY, time=1002.0)
    assert "00:16:42Z node:2" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(timeout=10) == 0


# forget


def test_a_server_that_moved_to_another_port_is_forgotten(
    worker: Callable[..., Worker], host: Callable[..., Host], tmp_path: Path
) -> None:
    worker(port="30000").write(*THE_BUG).die()
    worker(port="30001").write(*THE_BUG).die()
    now = [1000.0]
    one = host(clock=lambda: now[0])
    done = run("forget", "node:30000", "--journal.dir", tmp_path)
    assert done.exit_code == 0
    assert "forgets it within ten seconds" in done.stdout
    now[0] += 11
    one.refresh()
    one.refresh()
    for name in ("hicache_failure_active", "hicache_registrations_total", "hicache_worker_info"):
        assert values(one, name, server_port="30000") == []
        assert values(one, name, server_port="30001")
    one.close()
    again = host(clock=lambda: now[0])
    assert values(again, "hicache_registrations_total", server_port="30000") == []
    assert values(again, "hicache_registrations_total", server_port="30001") == [1]
    assert not list(tmp_path.glob("forget-*"))


def test_a_server_that_runs_is_not_forgotten(worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker(pid=77).write(READY)
    done = run("forget", "node:30000", "--journal.dir", tmp_path)
    assert done.exit_code == 1
    told = "hicache-obs forget: node:30000 still runs (pid 77); stop it first\n"
    assert done.stderr == told
    assert not list(tmp_path.glob("forget-*"))


def test_a_server_that_nobody_knows(worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker().die()
    worker(port="", host="engine").die()
    done = run("forget", "node:1", "--journal.dir", tmp_path)
    assert done.exit_code == 2
    told = "hicache-obs forget: 'node:1' is not known; known servers: engine, node:30000\n"
    assert done.stderr == told


@pytest.mark.parametrize(
    ("host_name", "port", "named"),
    [("fe80::1", "30000", "[fe80::1]:30000"), ("engine", "", "engine")],
    ids=["IPv6", "no port"],
)
def test_names_of_servers(
    host_name: str, port: str, named: str, worker: Callable[..., Worker], tmp_path: Path
) -> None:
    worker(host=host_name, port=port).write(*THE_BUG).die()
    assert run("forget", named, "--journal.dir", tmp_path).exit_code == 0
    one = Host([tmp_path])
    one.refresh()
    one.refresh()
    one.close()
    assert values(one, "hicache_failure_active") == []


def test_what_only_the_checkpoint_knows_is_forgotten_too(
    worker: Callable[..., Worker], host: Callable[..., Host], tmp_path: Path
) -> None:
    name = worker().write(*THE_BUG).die().name
    now = [1000.0]
    one = host(kept_runs=0, clock=lambda: now[0])
    assert not runs.journal_path(tmp_path, name).exists()
    assert values(one, "hicache_registrations_total") == [1]
    assert run("forget", "node:30000", "--journal.dir", tmp_path).exit_code == 0
    now[0] += 11
    one.refresh()
    one.refresh()
    assert values(one, "hicache_registrations_total") == []


def test_the_directory_of_the_environment(
    worker: Callable[..., Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker().write(READY)
    monkeypatch.setenv("HICACHE_OBS_STATE_DIR", str(tmp_path))
    assert f"directory\t{tmp_path}\tread" in run("status").stdout
    monkeypatch.setenv("HICACHE_OBS_STATE_DRI", "x")
    assert "HICACHE_OBS_STATE_DIR" in run("status").stderr
