"""How long a failure takes from the worker's death to the pager, by the real programs.

    python benchmarks/page.py

Each worker runs the real hook around a refused registration, and is killed by SIGKILL the moment
its exception is there; it is never scraped. Exporter, Prometheus and Alertmanager are real, the
rules are those that are shipped.

At intervals of 1 s Alertmanager waits for nothing (group_wait 0): what is measured is what comes
before. At 30 s the shipped routes are used as they are (group_wait 10 s).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "sglang"))

from bench.monitoring import (  # noqa: E402 - the bench is no package of ours to install
    Alertmanager,
    Exporter,
    Prometheus,
    Webhook,
    missing,
    scrape_configs,
)

from hicache_obs.rules.render import rules  # noqa: E402

KILLS, MEDIAN_BOUND_S, LONGEST_BOUND_S = 20, 3.0, 5.0
SLOW_KILLS, SLOW_APART_S, SLOW_BOUND_S = 4, 8.0, 90.0
VICTIM = Path(__file__).with_name("victim.py")


def kill_one(state: Path, number: int) -> tuple[str, float]:
    """A worker that fails and is killed: its model, and when (seconds since the epoch)."""
    model = f"model-{number}"
    worker = subprocess.Popen(
        [sys.executable, str(VICTIM), "after", model, str(30_000 + number)],
        env={**os.environ, "HICACHE_OBS_STATE_DIR": str(state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert worker.stdout is not None
    if worker.stdout.readline() != "ready\n":
        raise RuntimeError("the worker did not fail as it should")
    when = time.time()
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    return model, when


def measure(
    interval: str, group_wait: str, kills: int, apart_s: float, wait_s: float
) -> list[float]:
    """Seconds from each death to the webhook, in the order of the deaths."""
    with tempfile.TemporaryDirectory(prefix="hicache-obs-bench-") as name, ExitStack() as stack:
        folder, enter = Path(name), stack.enter_context
        webhook = enter(Webhook())
        config = yaml.safe_load((ROOT / "deploy/alertmanager/demo.yml").read_text())
        route = config["route"]["routes"][0]
        for each in (route, *route["routes"]):
            each["group_wait"] = group_wait
        exporter = enter(Exporter(folder, folder / "state"))
        scrape = scrape_configs(
            ROOT / "deploy/prometheus/scrape.yml", {"hicache-obs": [exporter.address]}, both=False
        )
        alertmanager = enter(Alertmanager(folder, config, webhook))
        prometheus = enter(
            Prometheus(folder, scrape, rules=rules(), alertmanager=alertmanager, interval=interval)
        )
        prometheus.wait_until_at_work(90)
        died = {}
        for number in range(kills):
            began = time.monotonic()
            model, when = kill_one(exporter.state_dir, number)
            died[model] = when
            time.sleep(max(0.0, apart_s - (time.monotonic() - began)))

        def latency(model: str) -> float:
            page = webhook.wait_for(
                lambda one: (
                    one.path == "/pager"
                    and any(alert["labels"].get("model_name") == model for alert in one.alerts)
                ),
                wait_s,
            )
            return page.time - died[model]

        return [latency(model) for model in died]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    lacking = missing()
    if lacking:
        print(f"benchmarks/page.py: not installed (Debian): {', '.join(lacking)}")
        return 1
    # A little more than the scrape interval, so that deaths come at every moment between two.
    fast = measure("1s", "0s", KILLS, 1.05, 30)
    slow = measure("30s", "10s", SLOW_KILLS, SLOW_APART_S, 120)
    print(f"machine: {platform.machine()}, {os.cpu_count()} cores; death to webhook, seconds")
    held = True
    rows: list[tuple[str, float, float]] = [
        (
            f"scrape and rules every 1 s, {KILLS} kills: median",
            statistics.median(fast),
            MEDIAN_BOUND_S,
        ),
        ("  longest", max(fast), LONGEST_BOUND_S),
        (f"every 30 s, group_wait 10 s, {SLOW_KILLS} kills: longest", max(slow), SLOW_BOUND_S),
    ]
    for text, value, bound in rows:
        within = value <= bound
        held = held and within
        print(f"{text:52} {value:8.2f} s  (bound {bound:g}{'' if within else ', NOT HELD'})")
    if options.json:
        figures: dict[str, Any] = {"every_1s": fast, "every_30s": slow}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
