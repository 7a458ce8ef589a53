"""Runs on disk: names, liveness by lock, removal of old dead runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_obs import runs
from hicache_obs.runs import RunName

HOLD = """
import sys
from pathlib import Path
from hicache_obs import runs
fd = runs.hold_alive_lock(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def run_name(started_ns: int, pid: int = 1) -> str:
    return f"abc123-{started_ns}-{pid}-0123abcd"


def dead_run(directory: Path, started_ns: int, size: int = 10) -> str:
    name = run_name(started_ns)
    runs.journal_path(directory, name).write_bytes(b"x" * size)
    runs.alive_path(directory, name).touch()
    return name


@pytest.fixture
def hold(
    start_python: Callable[..., subprocess.Popen[str]],
) -> Callable[[Path, str], subprocess.Popen[str]]:
    """Hold the lock of a run in a process of its own; returns when it is held."""

    def start(directory: Path, run: str) -> subprocess.Popen[str]:
        process = start_python(HOLD, directory, run)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    return start


# Names


def test_a_new_name_tells_its_process() -> None:
    name = RunName.new()
    assert RunName.parse(name.text) == name
    assert (name.pid, name.boot) == (os.getpid(), runs.boot_id())


def test_new_names_differ() -> None:
    assert len({RunName.new().text for _ in range(100)}) == 100


def test_the_boot_id_is_the_kernels() -> None:
    told = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    assert runs.boot_id() == told


@given(
    boot=st.from_regex(r"[0-9a-f]{1,32}", fullmatch=True),
    started=st.integers(0, 10**20 - 1),
    pid=st.integers(0, 10**10 - 1),
)
def test_a_name_holds_boot_start_and_pid(boot: str, started: int, pid: int) -> None:
    text = f"{boot}-{started}-{pid}-00ff00ff"
    assert RunName.parse(text) == RunName(started, boot, pid, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run",
        "abc-1-2",
        "abc-1-2-0123abc",
        "abc-1-2-0123abcd-5",
        "ABC-1-2-0123abcd",
        "abc-x-2-0123abcd",
        "abc-1-2-0123abcd\n",
        " abc-1-2-0123abcd",
        "../abc-1-2-0123abcd",
    ],
)
def test_what_is_no_name(text: str) -> None:
    assert RunName.parse(text) is None


def test_names_are_listed_oldest_first_and_only_ours(tmp_path: Path) -> None:
    newer, older = run_name(10**18 + 5), run_name(10**18 - 5)
    runs.journal_path(tmp_path, newer).touch()
    runs.alive_path(tmp_path, newer).touch()
    runs.alive_path(tmp_path, older).touch()
    for other in ("notes.jsonl", "x.alive", f".{newer}.alive", f"{newer}.txt", newer):
        (tmp_path / other).touch()
    assert [run.text for run in runs.list_runs(tmp_path)] == [older, newer]


# Liveness


def test_a_run_is_alive_until_it_is_killed(
    tmp_path: Path, hold: Callable[[Path, str], subprocess.Popen[str]]
) -> None:
    process = hold(tmp_path, run_name(1))
    assert runs.is_alive(tmp_path, run_name(1))
    assert runs.is_alive(tmp_path, run_name(1))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not runs.is_alive(tmp_path, run_name(1))


def test_a_run_without_a_lock_file_is_dead(tmp_path: Path) -> None:
    assert not runs.is_alive(tmp_path, run_name(1))


def test_a_lock_file_that_nobody_holds_is_dead(tmp_path: Path) -> None:
    runs.alive_path(tmp_path, run_name(1)).touch()
    assert not runs.is_alive(tmp_path, run_name(1))


def test_a_forked_child_does_not_keep_the_run_alive(
    tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    script = """
import os, sys
from pathlib import Path
from hicache_obs import runs
fd = runs.hold_alive_lock(Path(sys.argv[1]), sys.argv[2])
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
os._exit(0)
"""
    process = start_python(script, tmp_path, run_name(1))
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.wait()
    os.kill(child, 0)
    assert not runs.is_alive(tmp_path, run_name(1))


def test_liveness_is_seen_by_one_who_may_only_read(
    open_dir: Path,
    hold: Callable[[Path, str], subprocess.Popen[str]],
    run_python: Callable[..., str],
) -> None:
    hold(open_dir, run_name(1))
    dead_run(open_dir, 2)
    for number in (1, 2):
        runs.alive_path(open_dir, run_name(number)).chmod(0o444)
    open_dir.chmod(0o555)
    script = """
import sys
from pathlib import Path
from hicache_obs import runs
drop_root()
try:
    (Path(sys.argv[1]) / "new").touch()
except PermissionError:
    print([runs.is_alive(Path(sys.argv[1]), name) for name in sys.argv[2:]])
"""
    told = run_python(script, open_dir, run_name(1), run_name(2))
    assert told.strip() == "[True, False]"
    open_dir.chmod(0o777)


def test_nobody_sees_the_lock_file_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(11, "locked by another")

    monkeypatch.setattr(runs.fcntl, "lockf", refuse)
    with pytest.raises(OSError, match="locked by another"):
        runs.hold_alive_lock(tmp_path, run_name(1))
    assert runs.list_runs(tmp_path) == []


# Removal


def test_the_oldest_dead_runs_beyond_256_go(tmp_path: Path) -> None:
    names = [dead_run(tmp_path, number) for number in range(1, 261)]
    removed = runs.remove_old_dead_runs(tmp_path, "none", 1 << 30)
    assert sorted(removed) == sorted(names[:4])
    assert [run.text for run in runs.list_runs(tmp_path)] == names[4:]


def test_both_files_of_a_dead_run_go(tmp_path: Path) -> None:
    dead_run(tmp_path, 1)
    runs.remove_old_dead_runs(tmp_path, "none", 5)
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_dead_runs_beyond_the_bytes_go(tmp_path: Path) -> None:
    names = [dead_run(tmp_path, number, size=100) for number in range(1, 6)]
    removed = runs.remove_old_dead_runs(tmp_path, "none", 250)
    assert sorted(removed) == names[:3]


def test_the_limit_itself_is_kept(tmp_path: Path) -> None:
    for number in range(1, 4):
        dead_run(tmp_path, number, size=100)
    assert runs.remove_old_dead_runs(tmp_path, "none", 300) == []


@given(st.lists(st.integers(0, 120), min_size=1, max_size=8), st.integers(0, 300))
def test_no_removed_run_is_newer_than_one_that_stays(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int
) -> None:
    directory = tmp_path_factory.mktemp("runs")
    names = [dead_run(directory, number, size) for number, size in enumerate(sizes, 1)]
    removed = runs.remove_old_dead_runs(directory, "none", limit)
    assert sorted(removed) == names[: len(removed)]
    assert sum(sizes[len(removed) :]) <= limit


def test_a_living_run_and_the_own_stay(
    tmp_path: Path, hold: Callable[[Path, str], subprocess.Popen[str]]
) -> None:
    living, own = run_name(1), dead_run(tmp_path, 2, size=100)
    runs.journal_path(tmp_path, living).write_bytes(b"x" * 100)
    hold(tmp_path, living)
    dead = dead_run(tmp_path, 3, size=100)
    assert runs.remove_old_dead_runs(tmp_path, own, 0) == [dead]
    assert [run.text for run in runs.list_runs(tmp_path)] == [living, own]
    assert runs.is_alive(tmp_path, living)


def test_living_runs_use_up_nothing(
    tmp_path: Path, hold: Callable[[Path, str], subprocess.Popen[str]]
) -> None:
    living = run_name(9)
    runs.journal_path(tmp_path, living).write_bytes(b"x" * 100)
    hold(tmp_path, living)
    dead_run(tmp_path, 1, size=100)
    assert runs.remove_old_dead_runs(tmp_path, "none", 100) == []


def test_a_run_removed_by_a_rival_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [dead_run(tmp_path, number) for number in (1, 2, 3)]
    rivals = runs.journal_path(tmp_path, names[1])
    look = Path.stat

    def stat_and_lose(path: Path, **options: bool) -> os.stat_result:
        seen = look(path, **options)
        if path == rivals:
            rivals.unlink(missing_ok=True)
        return seen

    monkeypatch.setattr(Path, "stat", stat_and_lose)
    runs.remove_old_dead_runs(tmp_path, "none", 0)
    assert list(tmp_path.glob("*.jsonl")) == []


def test_a_run_of_another_user_does_not_stop_the_removal(
    open_dir: Path, run_python: Callable[..., str]
) -> None:
    foreign = dead_run(open_dir, 2)
    runs.alive_path(open_dir, foreign).chmod(0o000)
    script = """
import sys
from pathlib import Path
from hicache_obs import runs
drop_root()
directory, own = Path(sys.argv[1]), sys.argv[2]
runs.journal_path(directory, own).touch()
print(runs.remove_old_dead_runs(directory, "none", -1))
"""
    assert run_python(script, open_dir, run_name(1)).strip() == str([run_name(1)])
    assert foreign in [run.text for run in runs.list_runs(open_dir)]
