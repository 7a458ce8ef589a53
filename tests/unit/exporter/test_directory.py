"""Following journals by new bytes, and keeping what they told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import (
    BUILT,
    ENTERED,
    READY,
    REFUSED,
    REGISTERED,
    THE_BUG,
    WORKER,
    Worker,
    served,
    values,
)

from hicache_obs import events as ev
from hicache_obs import runs, wire
from hicache_obs.exporter import checkpoint
from hicache_obs.exporter.host import Host

REGISTRATIONS = "hicache_registrations_total"
LINES = "hicache_obs_journal_lines_total"


def test_a_journal_that_grows_is_read_by_its_new_bytes(
    worker: Callable[..., Worker], host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = worker().write(REFUSED)
    one = host()
    read: list[int] = []
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        data = real(fd, size, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", pread)
    size = run.path.stat().st_size
    run.write(REFUSED)
    one.refresh()
    one.refresh()
    assert values(one, REGISTRATIONS, outcome="failure") == [2]
    assert sum(read) == run.path.stat().st_size - size


def test_a_torn_last_line_waits_for_its_rest(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker()
    line = wire.to_line(REFUSED, 90, 1.0)
    one = host()
    for part in (line[:50], line[50:-1]):
        with run.path.open("ab") as file:
            file.write(part)
        one.refresh()
        assert values(one, REGISTRATIONS) == []
    with run.path.open("ab") as file:
        file.write(line[-1:])
    one.refresh()
    assert values(one, REGISTRATIONS) == [1]
    assert values(one, LINES, result="broken") == [0]


@pytest.mark.parametrize(
    "broken",
    [
        b"{",
        b"\xff\xfe\x00garbage",
        b"[]",
        b'{"v":1,"seq":4,"t":1,"kind":"registration"}',
        b'{"v":1,"seq":4,"t":1e999,"kind":"worker_ready","duration_s":1.0}',
        b'{"v":1,"seq":4,"t":1,"kind":"journal_lost","lost":-5,"reason":""}',
        b'{"v":1,"seq":4,"t":1,"kind":"journal_lost","lost":1' + b"0" * 400 + b',"reason":""}',
        b"[" * 5000,
        b"x" * 3_000_000,
    ],
    ids=[
        "half",
        "bytes",
        "list",
        "lacks fields",
        "endless",
        "negative",
        "huge",
        "deep",
        "long",
    ],
)
def test_a_broken_line_is_skipped_counted_and_named_once(
    broken: bytes,
    worker: Callable[..., Worker],
    host: Callable[..., Host],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, other = worker(tp="0"), worker(tp="1").write(REFUSED)
    for _ in range(2):
        with run.path.open("ab") as file:
            file.write(broken + b"\n")
    run.write(REFUSED)
    one = host()
    assert values(one, LINES, result="broken") == [2]
    assert values(one, REGISTRATIONS, tp_rank="0") == [1]
    assert values(one, REGISTRATIONS, tp_rank="1") == [1]
    assert len([r for r in caplog.records if str(run.path) in r.getMessage()]) == 1
    assert not [r for r in caplog.records if str(other.path) in r.getMessage()]


@given(data=st.binary(max_size=400))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_bytes_are_the_other_files_numbers_stand(
    data: bytes, worker: Callable[..., Worker], tmp_path: Path
) -> None:
    if not list(tmp_path.glob("*.jsonl")):
        worker(port="30000").write(*THE_BUG)
        worker(port="30001")
    odd = max(tmp_path.glob("*.jsonl"))
    odd.write_bytes(data + b"\n" + data)
    one = Host([tmp_path], keep=False)
    one.refresh()
    assert values(one, REGISTRATIONS, server_port="30000") == [1]
    assert values(one, "hicache_failure_active", cause="foreign_buffer") == [1]


def test_a_file_that_is_cut_or_replaced_counts_nothing_twice(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker().write(REFUSED, REFUSED)
    one = host()
    whole = run.path.read_bytes()
    run.path.write_bytes(whole[:100])
    one.refresh()
    run.path.write_bytes(whole)
    one.refresh()
    copy = run.path.with_suffix(".copy")
    copy.write_bytes(whole)
    copy.replace(run.path)
    run.write(REFUSED)
    one.refresh()
    assert values(one, REGISTRATIONS) == [3]
    assert values(one, LINES, result="broken") == [0]


def test_a_deleted_journal_takes_nothing_with_it(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker().write(*THE_BUG)
    one = host()
    run.path.unlink()
    one.refresh()
    assert values(one, "hicache_failure_active", cause="foreign_buffer") == [1]
    run.die()
    one.refresh()
    assert values(one, "hicache_failure_active", cause="foreign_buffer") == [1]
    assert values(one, REGISTRATIONS) == [1]


def test_a_newer_writers_lines(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    """Known fields of known events count, the rest is counted as skew."""
    run = worker()
    known = json.loads(wire.to_line(REFUSED, 50, 1.0)) | {"v": 2, "numa_node": 1}
    unknown = {"v": 2, "seq": 51, "t": 1.0, "kind": "pool_moved", "role": "draft"}
    with run.path.open("a") as file:
        file.write(json.dumps(known) + "\n" + json.dumps(unknown) + "\n")
    one = host()
    assert values(one, REGISTRATIONS, cause="foreign_buffer") == [1]
    assert values(one, LINES, result="skew") == [2]
    assert values(one, LINES, result="broken") == [0]


def test_an_older_writers_lines(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    """Fields that came later have defaults."""
    run = worker()
    later = {"launch", "boottime_ns", "mode", "allocator", "limit_bytes", "used_bytes"}
    later |= {"limit_source", "mended"}
    lines = [json.loads(line) for line in run.path.read_bytes().splitlines()]
    lines += [json.loads(wire.to_line(e, 60 + i, 1.0)) for i, e in enumerate((BUILT, ENTERED))]
    old = [
        {
            k: v
            for k, v in line.items()
            if k not in later or line["kind"] in ("pool", "worker_starting")
        }
        for line in lines
    ]
    run.path.write_text("".join(json.dumps(line) + "\n" for line in old))
    run.die()
    one = host()
    assert values(one, LINES, result="broken") == [0]
    assert values(one, "hicache_failure_active", cause="crashed_in_call") == [1]


def test_counters_grow_over_compaction_and_restarts(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    one = host(kept_runs=2)
    for number in range(1, 12):
        worker().write(*THE_BUG).die()
        one.refresh()
        assert values(one, REGISTRATIONS) == [number]
        if number % 3 == 0:
            one.close()
            one = host(kept_runs=2)
            assert values(one, REGISTRATIONS) == [number]
    assert values(one, "hicache_failure_active", cause="foreign_buffer") == [1]


def test_old_journals_go_and_the_one_that_is_served_stays(
    worker: Callable[..., Worker], host: Callable[..., Host], tmp_path: Path
) -> None:
    served_run = worker(port="1").write(*THE_BUG).die()
    for _ in range(8):
        last = worker(port="2").write(*THE_BUG).die()
    one = host(kept_runs=2)
    left = {path.name for path in tmp_path.glob("*.jsonl")}
    assert left == {served_run.path.name, last.path.name}
    assert {path.stem for path in tmp_path.glob("*.alive")} == {Path(name).stem for name in left}
    assert values(one, REGISTRATIONS) == [1, 8]


def test_living_runs_are_never_removed(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    alive = [worker(tp=str(rank)).write(BUILT) for rank in range(3)]
    worker(tp="0", port="2").die()
    host(kept_runs=0)
    assert all(run.path.exists() for run in alive)


def test_a_second_exporter_reads_beside_the_first(
    worker: Callable[..., Worker],
    host: Callable[..., Host],
    tmp_path: Path,
    run_python: Callable[..., str],
) -> None:
    """Two processes: POSIX locks do not keep one process from itself."""
    worker().write(*THE_BUG).die()
    first = host(kept_runs=0)
    script = """
import json, sys
from pathlib import Path
from hicache_obs.exporter.host import Host
one = Host([Path(sys.argv[1])], kept_runs=0)
one.refresh()
print(sum(r.value for r in one.view.rows if r.metric.name == "hicache_registrations_total"))
print(one.view.snapshot.problems)
"""
    for number in range(2, 5):
        run = worker().write(*THE_BUG)
        told = run_python(script, tmp_path)
        assert told.startswith(f"{number}.0"), told
        assert "another exporter keeps" in told
        run.die()
        assert run.path.exists()
        first.refresh()
        assert run_python(script, tmp_path).startswith(f"{number}.0")
    assert values(first, REGISTRATIONS) == [4]


def test_a_directory_that_was_made_anew_is_kept_by_one_exporter(
    worker: Callable[..., Worker],
    host: Callable[..., Host],
    tmp_path: Path,
    run_python: Callable[..., str],
) -> None:
    """Its lock went with the old one; whoever came first must see that."""
    place = tmp_path / "state"
    worker(directory=place).write(*THE_BUG).die()
    one = host(place)
    shutil.rmtree(place)
    one.refresh()
    worker(directory=place).write(*THE_BUG).die()
    one.refresh()
    script = """
import sys
from pathlib import Path
from hicache_obs.exporter.host import Host
one = Host([Path(sys.argv[1])])
one.refresh()
print(one.view.snapshot.problems)
"""
    assert "another exporter keeps" in run_python(script, place)


def test_the_second_follows_what_the_first_cleared_away(
    worker: Callable[..., Worker], host: Callable[..., Host], keeper: object, tmp_path: Path
) -> None:
    reader = Host([tmp_path], keep=False)
    first = host(kept_runs=1)
    for number in range(1, 6):
        worker().write(*THE_BUG).die()
        reader.refresh()
        assert values(reader, REGISTRATIONS) == [number]
        first.refresh()
        reader.refresh()
        assert values(reader, REGISTRATIONS) == [number]
        assert values(reader, "hicache_failure_active", cause="foreign_buffer") == [1]


def test_a_checkpoint_that_is_none_is_set_aside(
    worker: Callable[..., Worker],
    host: Callable[..., Host],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker().write(*THE_BUG).die()
    (tmp_path / checkpoint.NAME).write_text('{"sums": 7}')
    one = host()
    assert values(one, REGISTRATIONS) == [1]
    assert (tmp_path / "checkpoint.broken").read_text() == '{"sums": 7}'
    assert len([r for r in caplog.records if "is no checkpoint" in r.getMessage()]) == 1


def test_a_directory_that_comes_later(
    host: Callable[..., Host], tmp_path: Path, worker: Callable[..., Worker]
) -> None:
    later = tmp_path / "later"
    one = host(later)
    assert one.not_ready() == [f"{later} is waiting: it does not exist yet"]
    assert values(one, "hicache_obs_journal_directories", state="waiting") == [1]
    worker(directory=later).write(*THE_BUG).die()
    one.refresh()
    assert one.not_ready() == []
    assert values(one, "hicache_failure_active", cause="foreign_buffer") == [1]


def test_several_directories_are_one_host(
    worker: Callable[..., Worker], host: Callable[..., Host], tmp_path: Path
) -> None:
    """A server whose second start went to the user's directory is the same server."""
    worker(directory=tmp_path / "a").write(*THE_BUG).die()
    worker(directory=tmp_path / "b").write(replace(REGISTERED, call=7), READY)
    one = host(tmp_path / "a", tmp_path / "b")
    assert values(one, "hicache_failure_active", cause="foreign_buffer") == []
    assert values(one, "hicache_worker_up") == [1]


def test_what_is_no_journal_is_left_alone(
    worker: Callable[..., Worker], host: Callable[..., Host], tmp_path: Path
) -> None:
    (tmp_path / "notes.jsonl").write_text("mine\n")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    fifo = runs.journal_path(tmp_path, worker().name + "0")
    os.mkfifo(fifo)
    name = runs.RunName.new().text
    os.mkfifo(runs.journal_path(tmp_path, name))
    worker(port="9").write(*THE_BUG)
    one = host()
    assert values(one, "hicache_failure_active", cause="foreign_buffer") == [1]
    assert "not a regular file" in " ".join(one.view.snapshot.problems)
    assert (tmp_path / "notes.jsonl").exists()


def test_a_user_who_may_not_read(open_dir: Path, run_python: Callable[..., str]) -> None:
    script = """
import os, sys
from pathlib import Path
from hicache_obs.exporter.host import Host
from hicache_obs import runs
path = Path(sys.argv[1])
name = runs.RunName.new().text
runs.journal_path(path, name).write_text("")
os.chmod(runs.journal_path(path, name), 0)
closed = path / "closed"; closed.mkdir(); os.chmod(closed, 0)
drop_root()
one = Host([path, closed])
one.refresh()
print(one.not_ready())
"""
    told = run_python(script, open_dir)
    assert f"{open_dir}/closed is unreadable: Permission denied" in told
    assert ".jsonl cannot be read" in told


def test_ten_thousand_restarts(
    worker: Callable[..., Worker], host: Callable[..., Host], tmp_path: Path
) -> None:
    """A crash loop neither fills the disk nor leaves more rows than one failed start."""
    one = host()
    first: dict[str, int] = {}
    for number in range(10_000):
        name = runs.RunName.new().text
        started = ev.RunStarted(
            run=name,
            boot_id=runs.boot_id(),
            pid=1,
            host="node",
            launch=str(number),
            boottime_ns=number + 1,
        )
        starting = replace(WORKER, server_port="30000", tp_rank="0")
        lines = [
            wire.to_line(event, seq, 1000.0)
            for seq, event in enumerate((started, starting, *THE_BUG), 1)
        ]
        runs.journal_path(tmp_path, name).write_bytes(b"".join(lines))
        runs.alive_path(tmp_path, name).touch()
        if number % 100 == 99:
            one.refresh()
            rows = {name: len(rows) for name, rows in served(one).items()}
            first = first or rows
            assert rows == first
    assert values(one, REGISTRATIONS) == [10_000]
    assert len(list(tmp_path.iterdir())) <= 2 * runs.MAX_DEAD_RUNS + 5
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1 << 20
    assert sum(len(d.runs) for d in one.directories) == 1


_OTHERS = ("pool", "worker_starting")  # there these fields are as old as the kind
