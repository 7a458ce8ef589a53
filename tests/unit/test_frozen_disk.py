"""A file system that is really frozen: a start of SGLang does not notice."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache_obs import journal, runs, wire

TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze")

SCRIPT = """
import sys, time
from hicache_obs import recorder
from hicache_obs.events import WorkerFailed
event = WorkerFailed(outcome="failure", stage="registration", cause="foreign_buffer")
rec = recorder.get()
print(rec._run.text, flush=True)
for _ in sys.stdin:
    started = time.perf_counter()
    rec.emit(event)
    print(time.perf_counter() - started, flush=True)
"""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return f"{' '.join(command)}: {done.stderr.strip()}" if done.returncode else ""


class FileSystem:
    """A small ext4 of its own; frozen, every write to it blocks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def freeze(self) -> None:
        assert not _run("fsfreeze", "--freeze", str(self.directory))

    def thaw(self) -> None:
        _run("fsfreeze", "--unfreeze", str(self.directory))


@pytest.fixture
def file_system(tmp_path: Path) -> Iterator[FileSystem]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"freezing a file system takes root and {', '.join(missing or TOOLS)}")
    image, directory = tmp_path / "image", tmp_path / "mounted"
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    directory.mkdir()
    assert not _run("mkfs.ext4", "-q", "-F", str(image))
    refused = _run("mount", "-o", "loop", str(image), str(directory))
    if refused:
        pytest.skip(f"no loop mount here: {refused}")
    made = FileSystem(directory)
    try:
        yield made
    finally:
        made.thaw()
        if _run("umount", str(directory)):
            _run("umount", "--lazy", str(directory))


class Worker:
    """A process that emits a failure a line of its input and tells how long each took."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.run = self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def fail(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("fail\n")
        self._process.stdin.flush()
        return float(self._answer())

    def end(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture
def worker(
    file_system: FileSystem, start_python: Callable[..., subprocess.Popen[str]]
) -> Iterator[Worker]:
    state = str(file_system.directory / "state")
    process = start_python(SCRIPT, HICACHE_OBS_STATE_DIR=state)
    try:
        yield Worker(process)
    finally:
        file_system.thaw()
        process.kill()
        process.communicate()


def _kinds(file_system: FileSystem, run: str) -> list[str]:
    path = runs.journal_path(file_system.directory / "state", run)
    events = (item.event for item in journal.read(path) if isinstance(item, wire.Record))
    return [event.kind for event in events if event is not None]


def test_frozen_while_it_runs(file_system: FileSystem, worker: Worker) -> None:
    worker.fail()
    file_system.freeze()
    first, second = worker.fail(), worker.fail()
    file_system.thaw()
    assert first < 0.5
    assert second < 0.1
    worker.end()
    assert _kinds(file_system, worker.run).count("worker_failed") == 3


def test_frozen_from_the_start(file_system: FileSystem, worker: Worker) -> None:
    file_system.freeze()
    first, second = worker.fail(), worker.fail()
    file_system.thaw()
    assert first < 0.5
    assert second < 0.1
    worker.end()
    kinds = _kinds(file_system, worker.run)
    assert kinds[:3] == ["run", "worker_starting", "worker_failed"]
    assert kinds.count("worker_failed") == 2
