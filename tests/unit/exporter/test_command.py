"""``hicache-obs exporter`` as a process: pages, readiness, TLS, bad flags, signals, speed."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from exporter_process import Exporter
from journals import ENTERED, THE_BUG, Worker

Get = Callable[..., tuple[int, str]]


FAILED = r'hicache_failure_active\{.*cause="foreign_buffer".*\} 1'


def test_the_pages(
    exporter: Callable[..., Exporter], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    worker().write(*THE_BUG).die()
    one = exporter(f"--journal.dir={tmp_path}")
    one.wait_for(FAILED)
    assert one.get("/-/healthy") == (200, "healthy\n")
    assert one.get("/-/ready") == (200, "ready\n")
    status, page = one.get("/")
    assert status == 200
    assert page.startswith("<!doctype html>")
    assert "foreign_buffer" in page
    assert one.get("/nothing")[0] == 404
    assert one.end(signal.SIGTERM) == 0


def test_it_takes_no_post(exporter: Callable[..., Exporter], tmp_path: Path) -> None:
    one = exporter(f"--journal.dir={tmp_path}")
    request = urllib.request.Request(f"http://127.0.0.1:{one.port}/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request)


@pytest.mark.parametrize("path", ["/metrics", "/", "/-/healthy"])
def test_a_head_has_no_body(exporter: Callable[..., Exporter], path: str, tmp_path: Path) -> None:
    one = exporter(f"--journal.dir={tmp_path}")
    with socket.create_connection(("127.0.0.1", one.port), timeout=10) as client:
        client.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK")
    assert body == b""


def test_a_scrape_is_made_anew_when_a_series_changes_and_for_each_form(
    exporter: Callable[..., Exporter], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    run = worker().write(*THE_BUG[:-1])
    one = exporter(f"--journal.dir={tmp_path}")
    one.wait_for(FAILED)
    texts = {one.get("/metrics")[1] for _ in range(3)}
    assert len(texts) == 1
    open_metrics = urllib.request.Request(
        f"http://127.0.0.1:{one.port}/metrics",
        headers={"Accept": "application/openmetrics-text; version=1.0.0"},
    )
    for _ in range(2):
        with urllib.request.urlopen(open_metrics, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")
    picked = one.get("/metrics?name[]=hicache_worker_up")[1]
    assert {line.split("{")[0] for line in picked.splitlines() if line[0] != "#"} == {
        "hicache_worker_up"
    }
    run.write(THE_BUG[-1])
    one.wait_for(r'hicache_worker_starts_total\{.*outcome="failure".*\} 1')
    assert one.get("/metrics")[1] not in texts


def test_new_lines_and_deaths_are_seen_soon(
    exporter: Callable[..., Exporter], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    """The bound, 0.5 s, is a figure of ``make bench``; here only that no scrape asks for it."""
    run = worker()
    one = exporter(f"--journal.dir={tmp_path}")
    one.wait_for(r"hicache_worker_up\{.*\} 1")
    run.write(*THE_BUG[:-1])
    one.wait_for(FAILED)
    run.write(ENTERED).die()
    one.wait_for(r"hicache_worker_up\{.*\} 0")
    one.wait_for(FAILED)


def test_a_directory_that_is_not_there_yet(
    exporter: Callable[..., Exporter], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    later = tmp_path / "later"
    one = exporter(f"--journal.dir={later}")
    one.wait_for("does not exist yet", "/-/ready")
    assert one.get("/-/ready") == (503, f"{later} is waiting: it does not exist yet\n")
    worker(directory=later).write(*THE_BUG).die()
    one.wait_for(FAILED)
    assert one.get("/-/ready")[0] == 200
    one.end(signal.SIGTERM)
    told = [line.partition(f"{later} ")[2] for line in one.log if f"{later} " in line]
    assert told == ['is waiting: it does not exist yet"', 'is read"']


def test_it_needs_no_sglang_torch_or_mooncake() -> None:
    script = """
import sys
sys.modules.update(dict.fromkeys(("sglang", "torch", "mooncake"), None))
from hicache_obs.cli import main
main(["exporter", "--help"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "--web.listen-address" in done.stdout


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(f"--journal.dir={tmp_path}", f"--web.listen-address=127.0.0.1:{port}")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"hicache-obs exporter: cannot serve on 127.0.0.1:{port}: [Errno 98] Address already in use"
    ]


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        (
            "--web.listen-address=9748",
            "'9748' is no address; write HOST:PORT, [IPV6]:PORT or :PORT",
        ),
        ("--web.listen-address=::1:9748", "'::1:9748' is no address"),
        ("--web.listen-address=a:99999", "'a:99999' is no address"),
        (
            "--retention.failed-run=1 day",
            "'1 day' is no duration; write for example 90m, 24h or 7d",
        ),
        ("--retention.runs=-1", "-1"),
        ("--web.telemetry-path=metrics", "'metrics' cannot be the path of the metrics"),
        ("--web.telemetry-path=/", "'/' cannot be the path of the metrics"),
        ("--web.tls-cert=x", "--web.tls-cert and --web.tls-key go together"),
        ("--web.tls-client-ca=x", "--web.tls-client-ca needs --web.tls-cert"),
        ("--log.level=loud", "'loud' is not one of"),
        ("--journal.dir=/etc/passwd", "'/etc/passwd' is a file"),
    ],
)
def test_a_bad_flag_is_one_clear_line(flag: str, told: str) -> None:
    done = run(flag)
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hicache_obs.cli", "exporter", *flags],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_all_addresses_are_those_of_ipv6_too(
    exporter: Callable[..., Exporter], tmp_path: Path
) -> None:
    """The kubelet of a cluster without IPv4 probes by IPv6."""
    one = exporter(f"--journal.dir={tmp_path}", "--web.listen-address=:0")
    assert one.get("/-/healthy")[0] == 200
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with urllib.request.urlopen(f"http://[::1]:{one.port}/-/healthy", timeout=10) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("--web.listen-address=127.0.0.1:0",), True),
        (("--web.listen-address=0.0.0.0:0",), False),
        (("--web.listen-address=0.0.0.0:0", "--web.show-messages"), True),
    ],
    ids=["loopback", "everywhere", "asked for"],
)
def test_exception_texts_only_where_nobody_else_reads(
    flags: tuple[str, ...],
    shown: bool,
    exporter: Callable[..., Exporter],
    worker: Callable[..., Worker],
    tmp_path: Path,
) -> None:
    worker().write(*THE_BUG).die()
    one = exporter(f"--journal.dir={tmp_path}", *flags)
    one.wait_for("foreign_buffer", "/")
    assert ("error code: -1" in one.get("/")[1]) is shown


def test_log_lines_as_json(exporter: Callable[..., Exporter], tmp_path: Path) -> None:
    one = exporter(f"--journal.dir={tmp_path}/no", "--log.format=json")
    one.wait_for("does not exist", "/-/ready")
    one.end(signal.SIGTERM)
    rows = [json.loads(line) for line in one.log]
    assert {row["level"] for row in rows} == {"info", "warning"}


def test_counters_outlive_the_exporter(
    exporter: Callable[..., Exporter], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    """Killed at any moment: what it served it serves again."""
    total = r'hicache_registrations_total\{.*outcome="failure".*\} %d\.0'
    for number in range(1, 4):
        one = exporter(f"--journal.dir={tmp_path}", "--retention.runs=0")
        worker().write(*THE_BUG).die()
        one.wait_for(total % number)
        one.end(signal.SIGKILL)


def test_the_directories_that_are_looked_at_without_a_flag(
    exporter: Callable[..., Exporter], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    worker(directory=tmp_path / "state").write(*THE_BUG).die()
    one = exporter(env={"HICACHE_OBS_STATE_DIR": str(tmp_path / "state")})
    one.wait_for(FAILED)


def test_a_disk_that_does_not_answer_makes_it_unhealthy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In this process: the clock of the watcher is moved, the look never ends."""
    from hicache_obs.exporter import watch
    from hicache_obs.exporter.host import Host

    host = Host([tmp_path], keep=False)
    watcher = watch.Watcher(host)
    hold = []

    def never() -> None:
        hold.append(1)
        time.sleep(1)

    monkeypatch.setattr(host, "refresh", never)
    watcher.start()
    assert watcher.healthy
    real = time.monotonic
    monkeypatch.setattr(watch.time, "monotonic", lambda: real() + watch.STUCK_S)
    assert not watcher.healthy
    monkeypatch.undo()
    with contextlib.suppress(RuntimeError):
        watcher.stop()
    assert hold
