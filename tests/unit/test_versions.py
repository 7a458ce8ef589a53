"""An old exporter with a new plug-in, and the reverse: the real code of both, in processes.

*Old* is the first exporter with the whole of its commands, from this repository's history; its
version is set to 0.0.9, so that a test can tell it from this one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from exporter_process import Exporter, record

from hicache_obs import __version__

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIRST = "54a4efc"
PYTHON = (sys.executable, "-c", "from hicache_obs.cli import main; main()")
TOLD = (
    r'hicache_failure_active\{.*cause="foreign_buffer".*\} 1',
    r'hicache_allocator_mismatch\{actual="default".*harmful="true".*\} 1',
    r'hicache_worker_starts_total\{cause="foreign_buffer".*outcome="failure".*\} 1',
    r'hicache_registrations_total\{.*cause="foreign_buffer",code="-1".*\} 1',
    r'hicache_obs_journal_lines_total\{result="broken"\} 0',
)
NEW = {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which hicache_obs is the old one."""
    folder = tmp_path_factory.mktemp("old")
    packed = subprocess.run(
        ["git", "-C", ROOT, "archive", FIRST, "hicache_obs"], capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"commit {FIRST} is not in this copy of the repository (a source archive?)")
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    init = folder / "hicache_obs" / "__init__.py"
    init.write_text(re.sub(r'"\d+\.\d+\.\d+"', '"0.0.9"', init.read_text()))
    return {"PYTHONPATH": str(folder)}


@dataclass
class Host:
    """A directory on which exporters and workers of any version follow each other."""

    directory: Path

    def record(self, version: dict[str, str]) -> None:
        """A worker of that version had the bug, and died."""
        record(self.directory, version)

    def serve(self, version: dict[str, str]) -> Exporter:
        one = Exporter(f"--journal.dir={self.directory}", python=PYTHON, env=_environment(version))
        name = __version__ if version is NEW else "0.0.9"
        one.wait_for(rf'hicache_obs_build_info\{{python_version=".*",version="{name}"\}} 1')
        return one


def _environment(variables: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONSAFEPATH": "1", **variables}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "state")


def told(one: Exporter, *more: str) -> str:
    """What *one* serves, when all of it is there; it ends."""
    for line in (*TOLD, *more):
        one.wait_for(line)
    text = one.get("/metrics")[1]
    assert one.end(signal.SIGTERM) == 0
    assert not [line for line in one.log if "Traceback" in line]
    one.close()
    return text


def counted(text: str, result: str) -> int:
    found = re.search(rf'hicache_obs_journal_lines_total{{result="{result}"}} (\d+)', text)
    assert found
    return int(found[1])


def test_an_old_exporter_reads_a_new_plug_in(host: Host, old: dict[str, str]) -> None:
    """What it knows is told; what came later is counted, so that HiCacheObsVersionSkew says it."""
    host.record(NEW)
    text = told(host.serve(old))
    assert counted(text, "skew") > 0


def test_a_new_exporter_reads_an_old_plug_in(host: Host, old: dict[str, str]) -> None:
    host.record(old)
    text = told(host.serve(NEW), 'host="')
    assert counted(text, "skew") == 0


def test_counters_outlive_an_upgrade_and_the_way_back(host: Host, old: dict[str, str]) -> None:
    """Of the exporter, over journals of both; the checkpoint is read by both."""
    failures = r'hicache_registrations_total\{.*cause="foreign_buffer",code="-1".*\} %d(\.0)?\n'
    for number, (writer, reader) in enumerate(
        [(old, old), (old, NEW), (NEW, NEW), (NEW, old), (old, NEW)], start=1
    ):
        host.record(writer)
        one = host.serve(reader)
        one.wait_for(failures % number)
        assert one.end(signal.SIGTERM) == 0
        one.close()


@pytest.mark.parametrize("path", sorted(HERE.glob("recorded/*")), ids=lambda path: str(path.name))
def test_recorded_journals_are_read_for_good(
    path: Path, exporter_on: Callable[[Path], Exporter]
) -> None:
    """Each folder holds what `record_events.py` left under one version of the plug-in."""
    text = told(exporter_on(path))
    assert counted(text, "skew") == 0


@pytest.fixture
def exporter_on(tmp_path: Path) -> Callable[[Path], Exporter]:
    def start(recorded: Path) -> Exporter:
        for file in recorded.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        return Exporter(f"--journal.dir={tmp_path}", python=PYTHON)

    return start
