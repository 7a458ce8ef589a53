"""The exporter's bounds, beside prometheus_client's multi-process collector in the same run.

    python benchmarks/exporter.py [--json FILE] [--runs 2048]

Journals and process files hold the same: the events of a start with target and draft, written by
the project's own encoder for the one, applied by its live applier for the other (one process file
a run). What is compared is one scrape: text out of an HTTP answer of the exporter's process, and
text out of ``generate_latest`` over the peer. Medians; the two take turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests" / "unit"), str(ROOT / "tests" / "sglang")]

from bench.monitoring import Exporter  # noqa: E402 - the bench is not installed

LIVE_RANKS, PEER_SCRAPES, SCRAPES, DEATHS = 16, 3, 9, 15
PEER_SHARE, RSS_BOUND_MIB, SEEN_BOUND_S = 1 / 50, 80.0, 0.5

KEEPER = """
import fcntl, os, resource, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
for path in sys.stdin.read().split("\\n"):
    fcntl.lockf(os.open(path, os.O_RDWR | os.O_CREAT, 0o640), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.close()
import signal; signal.pause()
"""
VICTIM = Path(__file__).with_name("victim.py")
PEER = """
import os, sys, time
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
started = time.perf_counter()
registry = CollectorRegistry()
MultiProcessCollector(registry)
text = generate_latest(registry)
print(time.perf_counter() - started, text.count(b"\\n") - 2 * text.count(b"# TYPE"))
"""


def start_events() -> list[Any]:
    """What one start of a rank with target and draft tells, about as a real one does."""
    from journals import BUILT, ENTERED, MISMATCH, READY, REFUSED, REGISTERED

    from hicache_obs import events as ev

    target = replace(BUILT, role="target", pool="kv", allocator="mooncake")
    found: list[Any] = [ev.HooksReported(installed=15, pending=0, missing=())]
    for number, pool in enumerate((target, BUILT)):
        where = {"role": pool.role, "pool": pool.pool, "allocator": pool.allocator}
        found += [
            replace(ENTERED, api="allocate", call=number * 10, role=pool.role, pool=pool.pool),
            ev.SegmentAllocated(
                outcome="success",
                call=number * 10,
                bytes=1,
                address="0x1",
                reason="",
                **where,
            ),
            replace(ENTERED, api="pin", call=number * 10 + 1, role=pool.role, pool=pool.pool),
            ev.PagesPinned(
                outcome="success",
                call=number * 10 + 1,
                bytes=1,
                code="0",
                pinned_bytes=1,
                **where,
            ),
            pool,
            replace(ENTERED, call=number * 10 + 2, role=pool.role, pool=pool.pool),
            replace(REGISTERED, call=number * 10 + 2, **where),
        ]
    found += [
        ev.StoreSetUp(
            outcome="success",
            call=90,
            api="setup",
            backend="mooncake",
            mode="standalone",
            protocol="tcp",
            code="0",
            cause="",
        ),
        MISMATCH,
        replace(REFUSED, call=91),
        ev.DraftBuilderReported(state="applied"),
        ev.AllocatorChosen(
            role="draft", pool="draft", requested="mooncake", actual="mooncake", reason=""
        ),
        READY,
    ]
    return found


class Runs:
    """*count* runs in a folder, of *ranks* label sets; the newest *alive* of them hold locks."""

    def __init__(self, folder: Path, count: int, ranks: int, alive: int) -> None:
        from hicache_obs import events as ev
        from hicache_obs import runs, wire
        from hicache_obs.exporter.fold import Run  # noqa: F401 - imports everything it needs

        self.journals, self.files = folder / "journals", folder / "files"
        self.journals.mkdir()
        self.files.mkdir()
        body = start_events()
        names = []
        for number in range(count):
            name = f"{runs.boot_id()}-{10**18 + number}-{number + 1}-{number:08x}"
            started = ev.RunStarted(
                run=name,
                boot_id=runs.boot_id(),
                pid=number + 1,
                host="node",
                launch=str(number),
                boottime_ns=number + 1,
            )
            worker = self.worker(number % ranks)
            lines = [
                wire.to_line(event, seq, 1000.0)
                for seq, event in enumerate((started, worker, *body), 1)
            ]
            runs.journal_path(self.journals, name).write_bytes(b"".join(lines))
            names.append(name)
            self._peer(number, worker, [started, worker, *body])
        self.keeper = subprocess.Popen(
            [sys.executable, "-c", KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.keeper.stdin is not None
        assert self.keeper.stdout is not None
        kept = names[len(names) - alive :]
        self.keeper.stdin.write("\n".join(str(runs.alive_path(self.journals, n)) for n in kept))
        self.keeper.stdin.close()
        assert self.keeper.stdout.readline() == "held\n"

    @staticmethod
    def worker(rank: int) -> Any:
        from journals import WORKER

        return replace(WORKER, tp_rank=str(rank % 16), server_port=str(30000 + rank // 16))

    def _peer(self, number: int, worker: Any, events: list[Any]) -> None:
        """The process files that the same run would leave in multi-process mode."""
        from prometheus_client import values

        from hicache_obs import live
        from hicache_obs.updates import updates

        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self.files)
        values.ValueClass = values.MultiProcessValue(lambda: 100_000 + number)
        applier = live.LiveApplier(asdict(worker), {})
        for event in events:
            applier.apply(updates(event, 1000.0))
        values.close_all_multiprocess_files()

    def end(self) -> None:
        self.keeper.kill()
        self.keeper.wait()


def wait_until(holds: Callable[[], bool], seconds: float = 120, pause: float = 0.002) -> float:
    """Seconds until it held."""
    started = time.perf_counter()
    while not holds():
        if time.perf_counter() - started > seconds:
            raise TimeoutError
        time.sleep(pause)
    return time.perf_counter() - started


def resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) / 1024


def measure_scrapes(count: int, ranks: int, alive: int) -> dict[str, float]:
    """One scrape of the exporter and of its peer over the same runs, right after a series
    changed and with nothing changed since."""
    from journals import REFUSED

    from hicache_obs import wire

    with tempfile.TemporaryDirectory(prefix="hicache-obs-bench-") as folder:
        runs = Runs(Path(folder), count, ranks, alive)
        try:
            with Exporter(Path(folder), runs.journals) as exporter:
                wanted = f'hicache_obs_journal_runs{{state="live"}} {alive}.0'
                wait_until(lambda: wanted in exporter.metrics())
                time.sleep(2)
                newest = max(runs.journals.glob("*.jsonl"))
                ours, changed, peers = [], [], []
                for number in range(SCRAPES):
                    with newest.open("ab") as file:
                        file.write(wire.to_line(REFUSED, 1000 + number, 1.0))
                    time.sleep(1)
                    for times in (changed, ours):
                        started = time.perf_counter()
                        text = exporter.metrics()
                        times.append(time.perf_counter() - started)
                    if number < PEER_SCRAPES:
                        done = subprocess.run(
                            [sys.executable, "-c", PEER, str(runs.files)],
                            capture_output=True,
                            text=True,
                            check=True,
                        )
                        peers.append(float(done.stdout.split()[0]))
                series = sum(not line.startswith("#") for line in text.splitlines())
                return {
                    "ours_ms": statistics.median(ours) * 1e3,
                    "changed_ms": statistics.median(changed) * 1e3,
                    "slowest_ms": max(changed) * 1e3,
                    "changed_share": statistics.median(changed) / statistics.median(peers),
                    "peer_ms": statistics.median(peers) * 1e3,
                    "share": statistics.median(ours) / statistics.median(peers),
                    "series": series,
                    "peer_series": float(done.stdout.split()[1]),
                    "rss_mib": resident_mib(exporter.pid),
                }
        finally:
            runs.end()


def measure_following() -> dict[str, float]:
    """Time of a look at 2,000 new lines, with few and with many old ones before them."""
    from journals import REFUSED

    from hicache_obs import wire
    from hicache_obs.exporter.host import Host

    result = {}
    numbers = itertools.count(100)
    with tempfile.TemporaryDirectory(prefix="hicache-obs-bench-") as folder:
        runs = Runs(Path(folder), 1, 1, 1)
        (journal,) = runs.journals.glob("*.jsonl")
        host = Host([runs.journals], keep=False)

        def look(lines: int) -> float:
            with journal.open("ab") as file:
                for _ in range(lines):
                    file.write(wire.to_line(REFUSED, next(numbers), 1.0))
            started = time.perf_counter()
            host.refresh()
            return time.perf_counter() - started

        look(2000)
        result["new_ms"] = statistics.median(look(2000) for _ in range(5)) * 1e3
        look(100_000)
        result["new_after_many_ms"] = statistics.median(look(2000) for _ in range(5)) * 1e3
        result["ten_times_ms"] = look(20_000) * 1e3
        runs.end()
    return result


def measure_seen(where: str) -> list[float]:
    """Seconds from SIGKILL (after the failing call, or inside it) to the failure on /metrics."""
    found = []
    cause = "foreign_buffer" if where == "after" else "crashed_in_call"
    with tempfile.TemporaryDirectory(prefix="hicache-obs-bench-") as folder:
        journals = Path(folder) / "journals"
        with Exporter(Path(folder), journals) as exporter:
            for number in range(1, DEATHS + 1):
                worker = subprocess.Popen(
                    [sys.executable, str(VICTIM), where],
                    env={**os.environ, "HICACHE_OBS_STATE_DIR": str(journals)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n"
                worker.send_signal(signal.SIGKILL)
                started = time.perf_counter()
                worker.wait()
                worker.stdout.close()
                pattern = re.compile(rf'hicache_worker_up{{.*}} 0|cause="{cause}".*}} 1')

                def seen(number: int = number, pattern: re.Pattern[str] = pattern) -> bool:
                    text = exporter.metrics()
                    dead = re.search(r'journal_runs\{state="dead"\} (\d+)', text)
                    shown = cause in text and pattern.search(text) is not None
                    return shown and dead is not None and int(dead[1]) >= number

                wait_until(seen, 10)
                found.append(time.perf_counter() - started)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--runs", type=int, default=2048, help="runs (default: 2048)")
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    count = options.runs
    after, inside = measure_seen("after"), measure_seen("inside")
    following = measure_following()
    loop = measure_scrapes(count, LIVE_RANKS, LIVE_RANKS)
    full = measure_scrapes(count, count, count)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    per_series = (full["rss_mib"] - loop["rss_mib"]) * 1024 / (full["series"] - loop["series"])
    print(f"machine: {machine}; {count} runs")
    held = True
    for text, value, unit, bound in (
        ("crash loop, 16 live label sets: one scrape", loop["ours_ms"], "ms", None),
        ("  series", loop["series"], "", None),
        ("  MultiProcessCollector over the same runs", loop["peer_ms"], "ms", None),
        ("  ours / peer", loop["share"], "x", PEER_SHARE),
        ("  right after a series changed", loop["changed_ms"], "ms", None),
        ("  the same / peer", loop["changed_share"], "x", None),
        ("  resident memory", loop["rss_mib"], "MiB", RSS_BOUND_MIB),
        ("every run alive: the slowest scrape", full["slowest_ms"], "ms", None),
        ("  series", full["series"], "", None),
        ("  MultiProcessCollector over the same runs", full["peer_ms"], "ms", None),
        ("  series of the peer", full["peer_series"], "", None),
        ("  ours / peer", full["slowest_ms"] / full["peer_ms"], "x", 1.0),
        ("  resident memory", full["rss_mib"], "MiB", None),
        ("  memory of 1,000 series", per_series * 1000 / 1024, "MiB", None),
        ("a look at 2,000 new lines", following["new_ms"], "ms", None),
        ("  the same after 100,000 old ones", following["new_after_many_ms"], "ms", None),
        ("  a look at 20,000 new lines", following["ten_times_ms"], "ms", None),
        ("SIGKILL after the failing call to /metrics, median", statistics.median(after), "s", None),
        ("  longest", max(after), "s", SEEN_BOUND_S),
        ("SIGKILL inside a call to /metrics, median", statistics.median(inside), "s", None),
        ("  longest", max(inside), "s", SEEN_BOUND_S),
    ):
        within = bound is None or value <= bound
        held = held and within
        told = "" if bound is None else f"  (bound {bound:g}{'' if within else ', NOT HELD'})"
        print(f"{text:52} {value:10.3f} {unit:3}{told}")
    if options.json:
        rows = {"crash_loop": loop, "alive": full, "following": following}
        rows["seen"] = {"after_s": after, "inside_s": inside}  # type: ignore[dict-item]  # lists
        options.json.write_text(json.dumps({"machine": machine, **rows}, indent=2) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
