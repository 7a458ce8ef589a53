"""``forget``: names of servers, living runs, directories that cannot be read or written."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from journals import READY, THE_BUG, WORKER

from hicache_obs import events as ev
from hicache_obs import runs, wire
from hicache_obs.cli.directories import meanings
from hicache_obs.exporter import forgotten
from hicache_obs.exporter.host import Host

HOLD = """
import sys
from pathlib import Path
from hicache_obs import runs
fd = runs.hold_alive_lock(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def journal(
    directory: Path,
    number: int,
    host: str,
    port: str,
    *events: ev.Event,
    pod: str = "",
    own_network: bool = False,
) -> str:
    directory.mkdir(exist_ok=True)
    boot = runs.boot_id()
    name = f"{boot}-{number}-{number}-{number:08x}"
    started = ev.RunStarted(
        run=name,
        boot_id=boot,
        pid=number,
        host=host,
        pod=pod,
        boottime_ns=number,
        own_network=own_network,
    )
    starting = replace(WORKER, server_port=port)
    lines = [wire.to_line(e, n, 1e3) for n, e in enumerate((started, starting, *events), 1)]
    runs.journal_path(directory, name).write_bytes(b"".join(lines))
    return name


def run(server: str, *directories: Path) -> subprocess.CompletedProcess[str]:
    options = [word for path in directories for word in ("--journal.dir", str(path))]
    command = [sys.executable, "-m", "hicache_obs.cli", "forget", server, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def asked(directory: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in directory.glob("forget-*.json")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("node:30000", (("node", "30000"), ("node:30000", ""))),
        ("node", (("node", ""),)),
        ("node:", (("node", ""), ("node:", ""))),
        ("[fe80::1]:30000", (("fe80::1", "30000"), ("fe80::1]:30000", ""))),
        ("[fe80::1]", (("fe80::1", ""),)),
        ("fe80::1", (("fe80:", "1"), ("fe80::1", ""))),
    ],
)
def test_what_a_name_may_mean(text: str, found: tuple[tuple[str, str], ...]) -> None:
    assert meanings(text) == found


@pytest.mark.parametrize("text", ["fe80::1", "[fe80::1]", "[fe80::1]:"])
def test_an_ipv6_host_without_a_port(text: str, tmp_path: Path) -> None:
    journal(tmp_path, 1, "fe80::1", "", *THE_BUG)
    journal(tmp_path, 2, "fe80::1", "30000", *THE_BUG)
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert asked(tmp_path) == [{"host": "fe80::1", "server_port": ""}]


def test_a_pod_stands_for_the_server_that_it_is(tmp_path: Path) -> None:
    """With host network a page names the pod, and the server is a port of the node."""
    journal(tmp_path, 1, "node", "30000", *THE_BUG, pod="sglang-0")
    done = run("sglang-0:30000", tmp_path)
    assert done.returncode == 0, done.stderr
    assert asked(tmp_path) == [{"host": "node", "server_port": "30000"}]


def test_it_says_what_happens_without_an_exporter(tmp_path: Path) -> None:
    journal(tmp_path, 1, "node", "30000", *THE_BUG)
    done = run("node:30000", tmp_path)
    assert done.stdout == (
        f"node:30000: the exporter that keeps {tmp_path} forgets it within ten seconds; "
        "if none runs, the request waits for it\n"
    )
    assert done.stderr == ""


def test_only_directories_that_know_the_server_are_asked(tmp_path: Path) -> None:
    journal(tmp_path / "a", 1, "node", "30000", *THE_BUG)
    journal(tmp_path / "b", 2, "node", "30001", *THE_BUG)
    assert run("node:30000", tmp_path / "a", tmp_path / "b").returncode == 0
    assert asked(tmp_path / "a") == [{"host": "node", "server_port": "30000"}]
    assert asked(tmp_path / "b") == []


def test_a_living_run_in_one_directory_keeps_all(
    tmp_path: Path, start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    journal(tmp_path / "a", 1, "node", "30000", *THE_BUG)
    name = journal(tmp_path / "b", 77, "node", "30000", READY)
    holder = start_python(HOLD, tmp_path / "b", name)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    done = run("node:30000", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1
    assert done.stderr == "hicache-obs forget: node:30000 still runs (pid 77); stop it first\n"
    assert asked(tmp_path / "a") == asked(tmp_path / "b") == []


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = run("node:30000", tmp_path / "no")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"hicache-obs forget: {tmp_path / 'no'} is waiting: it does not exist yet",
        "hicache-obs forget: 'node:30000' is not known; known servers: none",
    ]


def test_the_others_are_asked_where_one_cannot_be_written(
    open_dir: Path, run_python: Callable[..., str]
) -> None:
    first, second = open_dir / "a", open_dir / "b"
    journal(first, 1, "node", "30000", *THE_BUG)
    journal(second, 2, "node", "30000", *THE_BUG)
    for path in (first, second):
        path.chmod(0o755)
        for file in path.iterdir():
            file.chmod(0o644)
    second.chmod(0o777)
    script = """
import encodings.ascii, sys
from click.testing import CliRunner
from hicache_obs.cli.forget import forget
drop_root()
options = [word for path in sys.argv[1:] for word in ("--journal.dir", path)]
done = CliRunner().invoke(forget, ["node:30000", *options])
print(done.exit_code, done.stderr, end="")
"""
    told = run_python(script, first, second)
    assert told == f"2 hicache-obs forget: {first} cannot be written: Permission denied\n"
    assert len(list(second.glob("forget-*.json"))) == 1


def test_who_may_read_the_directory_may_read_the_request(
    open_dir: Path, run_python: Callable[..., str]
) -> None:
    """root asks; the exporter is a member of the directory's group."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files to any group")
    os.chown(open_dir, -1, 12345)
    open_dir.chmod(0o770)
    before = os.umask(0o077)
    try:
        forgotten.ask(open_dir, "node", "30000")
    finally:
        os.umask(before)
    (path,) = open_dir.glob("forget-*.json")
    status = path.stat()
    assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 0o640)
    script = """
import os, sys
from pathlib import Path
from hicache_obs.exporter import forgotten
from hicache_obs.exporter.host import Host
os.setgroups([]); os.setgid(12345); os.setuid(65534)
(one,) = forgotten.requests(Path(sys.argv[1]), print)
print(one.host, one.server_port)
"""
    assert run_python(script, open_dir) == "node 30000\n"


def test_a_group_that_may_not_be_given_stops_nothing(
    open_dir: Path, run_python: Callable[..., str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes a directory of a foreign group")
    os.chown(open_dir, -1, 12345)
    script = """
import encodings.ascii, sys
from pathlib import Path
from hicache_obs.exporter import forgotten
from hicache_obs.exporter.host import Host
drop_root()
print(forgotten.ask(Path(sys.argv[1]), "node", "30000").name)
"""
    assert run_python(script, open_dir).startswith("forget-")
    assert asked(open_dir) == [{"host": "node", "server_port": "30000"}]


def test_pods_of_one_name_want_their_namespace(tmp_path: Path) -> None:
    for number, namespace in ((1, "llm"), (2, "lab")):
        name = journal(tmp_path, number, "sglang-0", "30000", *THE_BUG, pod="sglang-0")
        path = runs.journal_path(tmp_path, name)
        text = path.read_bytes().replace(b'"namespace":""', f'"namespace":"{namespace}"'.encode())
        path.write_bytes(text)
    done = run("sglang-0:30000", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "hicache-obs forget: 'sglang-0:30000' may be one of lab/sglang-0:30000, "
        "llm/sglang-0:30000; name its namespace too\n"
    )
    assert asked(tmp_path) == []
    done = run("llm/sglang-0:30000", tmp_path)
    assert done.returncode == 0, done.stderr
    assert asked(tmp_path) == [{"namespace": "llm", "host": "sglang-0", "server_port": "30000"}]


def test_of_pods_with_a_network_of_their_own_each_is_a_server(tmp_path: Path) -> None:
    """Two of one port on a node: the node does not say which."""
    for number, pod in ((1, "sglang-0"), (2, "sglang-1")):
        journal(tmp_path, number, "node", "30000", *THE_BUG, pod=pod, own_network=True)
    done = run("node:30000", tmp_path)
    assert done.returncode == 2
    assert "may be one of sglang-0:30000, sglang-1:30000" in done.stderr
    assert run("sglang-1:30000", tmp_path).returncode == 0
    assert asked(tmp_path) == [{"host": "sglang-1", "server_port": "30000"}]
    host = Host([tmp_path])
    host.refresh()
    host.refresh()  # the request is obeyed; what is served is made of what is left
    assert {row.labels["pod"] for row in host.view.rows if "pod" in row.labels} == {"sglang-0"}
    host.close()
