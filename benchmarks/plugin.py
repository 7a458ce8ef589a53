"""The bounds that the plug-in promises, measured beside their peers in one run.

    python benchmarks/plugin.py [--json FILE]

Medians of several rounds; peers take turns with what they are compared to, round by round, so
that a machine whose speed drifts slows both. Figures of one machine: read the ratios.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROUNDS, CALLS = 15, 300
HOOK_BOUND_US, SPAN_RATIO_BOUND, LOAD_BOUND_MS = 60.0, 10.0, 10.0


def median_us(call: Callable[[], object]) -> float:
    """Median duration of one call in microseconds, over one round."""
    times = []
    for _ in range(CALLS):
        started = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times) / 1000


def measure_hook(folder: Path) -> dict[str, float]:
    """One hook end to end on the success path, the bare call, and one OpenTelemetry span.

    The hooked call is the real observer of ``register_buffer`` with journal and live metrics
    (multi-process mode); what it wraps answers at once, so what is measured is ours.
    """
    os.environ["HICACHE_OBS_STATE_DIR"] = str(folder / "state")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    from hicache_obs import recorder
    from hicache_obs.hooks import scope
    from hicache_obs.hooks.around import around
    from hicache_obs.ledger import Segment

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Nowhere()))
    tracer = provider.get_tracer("bench")

    address, size = 1 << 40, 1 << 34
    buffer = SimpleNamespace(data_ptr=lambda: address, numel=lambda: size, element_size=lambda: 1)
    store = SimpleNamespace(config=SimpleNamespace(standalone_storage=True))
    recorder.get().ledger.add_segment(Segment(address, size, "mooncake", "target", "kv"))

    def bare(_store: Any, _tensor: Any) -> None:
        return None

    def span() -> None:
        with tracer.start_as_current_span("register_buffer") as current:
            current.set_attribute("hicache.role", "target")
            current.set_attribute("hicache.bytes", size)

    journal = recorder.get()._journal
    hand_over = journal.hand_over

    def not_waited_for(*arguments: Any, **how: Any) -> Callable[[], bool]:
        hand_over(*arguments, **how)
        return lambda: True

    def handed() -> None:
        journal.hand_over = not_waited_for  # type: ignore[method-assign]  # for this figure only
        try:
            hook(bare, store, buffer)
        finally:
            journal.hand_over = hand_over  # type: ignore[method-assign]

    there, back = SimpleQueue[int](), SimpleQueue[int]()

    def echo() -> None:
        while there.get():
            back.put(1)

    def wake() -> None:
        there.put(1)
        back.get()

    threading.Thread(target=echo, daemon=True).start()
    hook = around("register_buffer")
    over = scope.Registering("register_mem_pool_host", "target", "kv", "mooncake")
    rounds: dict[str, list[float]] = {"hook": [], "handed": [], "wake": [], "bare": [], "span": []}
    with scope.handing_over(over):
        hook(bare, store, buffer)
        for _ in range(ROUNDS):
            rounds["hook"].append(median_us(lambda: hook(bare, store, buffer)))
            rounds["handed"].append(median_us(handed))
            rounds["wake"].append(median_us(wake))
            rounds["span"].append(median_us(span))
            rounds["bare"].append(median_us(lambda: bare(store, buffer)))
    result = {f"{name}_us": statistics.median(values) for name, values in rounds.items()}
    ratios = [h / s for h, s in zip(rounds["hook"], rounds["span"], strict=True)]
    return result | {"hook_over_span": statistics.median(ratios)}


LOAD = """
import importlib, importlib.metadata, json, sys, time
import sglang.srt.plugins
started = time.perf_counter()
points = importlib.metadata.entry_points(group="sglang.srt.plugins")
found = time.perf_counter()
before = set(sys.modules)
next(p for p in points if p.name == "hicache_obs").load()()
loaded = time.perf_counter()
new = sorted(set(sys.modules) - before)
print(json.dumps({"metadata_ms": (found - started) * 1e3, "load_ms": (loaded - found) * 1e3,
                  "modules": len(new), "sglang_modules": sum(m.startswith("sglang") for m in new)}))
"""


def measure_load() -> dict[str, float]:
    """Loading the plug-in in a process that has SGLang's plug-in module, several processes."""
    sys.path.insert(0, str(ROOT / "tests" / "sglang"))
    from bench.harness import run_python

    compileall.compile_dir(ROOT / "hicache_obs", quiet=1)  # as pip does when it installs
    rows = []
    for _ in range(7):
        done = run_python("0.5.14", LOAD)
        rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hicache-obs-bench-") as folder:
        figures = measure_hook(Path(folder)) | measure_load()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"machine: {machine}; {ROUNDS} rounds of {CALLS} calls, 7 loads; medians")
    lines = (
        ("hook, success path, until it is written", "hook_us", "us", HOOK_BOUND_US),
        ("  of it, hand-over to the journal included", "handed_us", "us", None),
        ("  a bare hand-over to a thread and back", "wake_us", "us", None),
        ("  the call that it wraps", "bare_us", "us", None),
        ("  one OpenTelemetry SDK span", "span_us", "us", None),
        ("  hook until written / span, by round", "hook_over_span", "x", SPAN_RATIO_BOUND),
        ("plug-in load beyond importlib.metadata", "load_ms", "ms", LOAD_BOUND_MS),
        ("  importlib.metadata itself", "metadata_ms", "ms", None),
        ("  modules loaded", "modules", "", None),
        ("  of them SGLang's", "sglang_modules", "", 0),
    )
    within = True
    for text, name, unit, bound in lines:
        held = bound is None or figures[name] <= bound
        within = within and held
        told = "" if bound is None else f"  (bound {bound:g}{'' if held else ', NOT HELD'})"
        print(f"{text:43} {figures[name]:8.2f} {unit:3}{told}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, **figures}, indent=2) + "\n")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
