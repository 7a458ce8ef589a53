"""Workers, the exporter and a stranger, each a user of its own: who may read and write what."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exporter_process import Exporter
from journals import THE_BUG

from hicache_obs import events as ev
from hicache_obs import runs
from hicache_obs.events import Event
from hicache_obs.exporter import checkpoint

SHARED = 4242
AS_USER = str(Path(__file__).parents[1] / "as_user.py")
WORKER, OTHER_WORKER, EXPORTER, STRANGER = (
    [sys.executable, AS_USER, str(uid), groups]
    for uid, groups in (
        (4001, f"4001,{SHARED}"),
        (4002, f"4002,{SHARED}"),
        (4003, f"4003,{SHARED}"),
        (4004, "4004"),
    )
)
COMMAND = "from hicache_obs.cli import main; main()"
RECORD = """
import pickle, sys
from hicache_obs import config, recorder
one = recorder.Recorder(config.load())
for event in pickle.loads(bytes.fromhex(sys.argv[1])):
    one.emit(event)
one.flush()
print("done", flush=True)
sys.stdin.read()
"""
FAILED = r'hicache_failure_active\{.*cause="foreign_buffer".*\} 1'

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start other users")
Record = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def state(open_dir: Path) -> Path:
    return open_dir / "state"


@pytest.fixture
def record(state: Path, example: Callable[..., Event]) -> Iterator[Record]:
    """A user's worker that had the bug: it writes its journal and lives on."""
    made: list[subprocess.Popen[str]] = []

    def begin(user: list[str], port: str = "30000", umask: int = 0o022) -> Any:
        starting = example(ev.WorkerStarting, server_port=port, tp_rank="0", hicache=True)
        assert isinstance(starting, ev.WorkerStarting)
        told = pickle.dumps([replace(starting, extra_labels={}), *THE_BUG]).hex()
        variables = {"HICACHE_OBS_STATE_DIR": str(state), "HICACHE_OBS_STATE_GROUP": str(SHARED)}
        worker = subprocess.Popen(
            [*user, RECORD, told],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            umask=umask,
        )
        made.append(worker)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "done\n"
        return worker

    yield begin
    for worker in made:
        worker.kill()
        worker.communicate()


def facts(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_and_groups_are_as_designed_whatever_the_umask(
    record: Record, state: Path, umask: int
) -> None:
    record(WORKER, umask=umask)
    assert facts(state) == (4001, SHARED, 0o770)
    files = sorted(path.suffix for path in state.iterdir())
    assert files == [".alive", ".jsonl"]
    assert {facts(path) for path in state.iterdir()} == {(4001, SHARED, 0o640)}


def test_an_exporter_in_the_group_reads_keeps_and_cleans_up(
    record: Record, exporter: Callable[..., Exporter], state: Path
) -> None:
    """Two servers' workers are two users; the exporter is a third, and none of them root."""
    first, second = record(WORKER), record(OTHER_WORKER, port="30001")
    flags = (f"--journal.dir={state}", "--retention.runs=0", "--retention.failed-run=1s")
    one = exporter(*flags, python=[*EXPORTER, COMMAND])
    one.wait_for(FAILED)
    assert len(list(state.glob("*.jsonl"))) == 2
    for worker in (first, second):
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    until = time.monotonic() + 20
    while left := list(state.glob("*.jsonl")):
        assert time.monotonic() < until, left
        time.sleep(0.1)
    one.end(signal.SIGTERM)
    assert [line for line in one.log if "level=warning" in line] == []
    # What it counted outlives the journals and itself.
    again = exporter(*flags, python=[*EXPORTER, COMMAND])
    again.wait_for(r'hicache_registrations_total\{.*outcome="failure".*server_port="30001".*\} 1')


def test_what_a_member_of_the_group_puts_there_harms_no_exporter_that_is_root(
    record: Record, exporter: Callable[..., Exporter], state: Path, open_dir: Path
) -> None:
    """Links to a file that root may read or write, and pipes that nobody writes to."""
    record(WORKER)
    secret = open_dir / "secret"
    secret.write_text('{"v": 1, "password": "hunter2"}\n')
    secret.chmod(0o600)
    number = time.time_ns()
    for suffix in (".jsonl", ".alive"):
        for place, make in enumerate((os.symlink, _pipe)):
            make(secret, state / f"{runs.boot_id()}-{number + place}-1-0000000{place}{suffix}")
    _pipe(secret, state / "forget-1.json")
    os.symlink(secret, state / "forget-2.json")
    os.symlink(secret, state / f".{checkpoint.NAME}.new")
    os.symlink(secret, state / checkpoint.NAME)
    os.symlink(secret, state / "exporter.lock")
    one = exporter(f"--journal.dir={state}")
    one.wait_for(FAILED)
    assert one.get("/-/healthy")[0] == 200
    assert "hunter2" not in one.get("/metrics")[1] + one.get("/")[1] + "".join(one.log)
    (state / "exporter.lock").unlink()
    one.wait_for(r'hicache_obs_errors_total\{where="exporter_checkpoint"\}', seconds=20)
    (state / checkpoint.NAME).unlink()
    second = record(OTHER_WORKER, port="30001")
    second.kill()
    second.wait()
    until = time.monotonic() + 20
    while not (state / checkpoint.NAME).exists():
        assert time.monotonic() < until, one.log
        time.sleep(0.1)
    assert secret.read_text() == '{"v": 1, "password": "hunter2"}\n'
    assert not (state / checkpoint.NAME).is_symlink()


def _pipe(_secret: Path, path: Path) -> None:
    os.mkfifo(path)


def test_a_user_outside_the_group_reads_nothing(
    record: Record, exporter: Callable[..., Exporter], state: Path
) -> None:
    record(WORKER)
    one = exporter(f"--journal.dir={state}", python=[*STRANGER, COMMAND])
    one.wait_for("Permission denied", "/-/ready")
    assert "foreign_buffer" not in one.get("/metrics")[1]
    assert 'hicache_obs_journal_directories{state="unreadable"} 1.0' in one.get("/metrics")[1]
    state.chmod(0o775)  # an exporter that waits needs no restart
    one.wait_for(r'hicache_obs_journal_directories\{state="read"\} 1.0')
    state.chmod(0o770)
    command = [*STRANGER, COMMAND, "events", "--journal.dir", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Permission denied" in done.stderr


def test_a_directory_of_everybody_still_shows_a_stranger_no_journal(
    record: Record, exporter: Callable[..., Exporter], state: Path
) -> None:
    """Made beforehand, as /tmp is: its mode is left alone, and the files keep their own."""
    state.mkdir()
    state.chmod(0o1777)
    record(WORKER)
    assert stat.S_IMODE(state.stat().st_mode) == 0o1777
    one = exporter(f"--journal.dir={state}", python=[*STRANGER, COMMAND])
    one.wait_for(r'hicache_obs_errors_total\{where="exporter_journal_read"\} 1')
    assert "foreign_buffer" not in one.get("/metrics")[1]
