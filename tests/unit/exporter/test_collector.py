"""What a scrape of the exporter holds; and that both appliers tell the same story."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from journals import BUILT, REFUSED, THE_BUG, Worker
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hicache_obs import events as ev
from hicache_obs import wire
from hicache_obs.events import KINDS, Event
from hicache_obs.exporter.collector import HostCollector
from hicache_obs.exporter.host import Host
from hicache_obs.metrics import EXPORTER_METRICS, METRICS, WORKER_LABELS, ended

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
LIVE = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from hicache_obs import live, wire
from hicache_obs.events import WorkerStarting
from hicache_obs.updates import updates
records = [wire.from_line(line) for line in Path(sys.argv[1]).read_bytes().splitlines(True)]
worker = next(r.event for r in records if isinstance(r.event, WorkerStarting))
applier = live.LiveApplier(asdict(worker), worker.extra_labels)
for record in records:
    applier.apply(updates(record.event, record.time))
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def scrape(host: Host) -> str:
    registry = CollectorRegistry()
    registry.register(HostCollector(lambda: host.view))
    return generate_latest(registry).decode()


def series(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_both_appliers_tell_the_same_story(
    example: Callable[..., Event],
    worker: Callable[..., Worker],
    host: Callable[..., Host],
    run_python: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Every kind of event, well and failed: the same series but for rows that ended."""
    run = worker(extra_labels={"zone": "a", "role": "b"})
    for cls in KINDS.values():
        if cls not in (ev.RunStarted, ev.WorkerStarting):
            run.write(example(cls))
    failed = (ev.BufferRegistered, ev.PoolBuilt, ev.StoreSetUp, ev.PagesPinned, ev.WorkerFailed)
    run.write(*(example(cls, outcome="failure", error="x") for cls in failed))
    run.write(
        example(ev.AllocatorChosen, reason="import_error"), example(ev.PoolReleased, pool="p")
    )
    multiproc = tmp_path / "multiproc"
    multiproc.mkdir()
    live = series(run_python(LIVE, run.path, PROMETHEUS_MULTIPROC_DIR=str(multiproc)))
    one = host()
    found = series(scrape(one))
    own = {m.name for m in EXPORTER_METRICS}
    places = {("host", "node")}
    exporter = {
        (name, labels - places): value
        for (name, labels), value in found.items()
        if name not in own and ("host", "node") in labels
    }
    by_name = {metric.name: metric for metric in METRICS}
    still = {
        (name, labels): value
        for (name, labels), value in live.items()
        if not ended(
            by_name[name], tuple(dict(labels)[label] for label in by_name[name].labels), value
        )
    }
    assert exporter == still
    assert {name for name, _ in live} == {metric.name for metric in METRICS}


def test_a_scrape_has_what_a_worker_has_and_the_host(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    run = worker()
    run.started = replace(run.started, namespace="llm", pod="sglang-0")
    run.write(run.started, *THE_BUG)
    found = series(scrape(host()))
    (labels,) = [dict(k[1]) for k, v in found.items() if k[0] == "hicache_failure_active" and v]
    own = {"stage", "mode", "role", "pool", "allocator", "code", "cause"}
    assert labels.keys() == {*WORKER_LABELS, *own, "host", "namespace", "pod"}
    assert (labels["host"], labels["namespace"], labels["pod"]) == ("node", "llm", "sglang-0")


def test_label_texts_of_any_kind_come_out_whole(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    hostile = 'a"b\\n\nc{}<script>é'
    worker(model_name=hostile).write(*THE_BUG)
    found = series(scrape(host()))
    assert {dict(labels).get("model_name") for _, labels in found} - {None} == {hostile}


def test_promtool_finds_nothing(
    worker: Callable[..., Worker],
    host: Callable[..., Host],
    example: Callable[..., Event],
    promtool: str,
) -> None:
    run = worker()
    for cls in KINDS.values():
        run.write(example(cls))
    worker(port="1").write(*THE_BUG).die()
    text = scrape(host())
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_exporters_own_rows(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    worker().write(*THE_BUG).die()
    live = worker(port="1").write(BUILT, REFUSED)
    with live.path.open("ab") as file:
        file.write(b"nonsense\n")
    found = series(scrape(host()))
    own = {
        (name, tuple(labels)): value
        for (name, labels), value in found.items()
        if name in {m.name for m in EXPORTER_METRICS}
    }
    assert own == {
        ("hicache_obs_journal_lines_total", (("result", "event"),)): 11,
        ("hicache_obs_journal_lines_total", (("result", "skew"),)): 0,
        ("hicache_obs_journal_lines_total", (("result", "broken"),)): 1,
        ("hicache_obs_journal_runs", (("state", "live"),)): 1,
        ("hicache_obs_journal_runs", (("state", "dead"),)): 1,
        ("hicache_obs_journal_directories", (("state", "read"),)): 1,
        ("hicache_obs_journal_directories", (("state", "waiting"),)): 0,
        ("hicache_obs_journal_directories", (("state", "unreadable"),)): 0,
    }
    errors = {
        dict(k[1]).get("where"): v for k, v in found.items() if k[0].startswith("hicache_obs_err")
    }
    assert errors == {"exporter_journal_line": 1}


def test_a_line_is_json_all_the_same() -> None:
    """The record that the tests write is the one that workers write."""
    assert json.loads(wire.to_line(REFUSED, 1, 1.0))["cause"] == "foreign_buffer"


@pytest.mark.parametrize("metric", [*METRICS, *EXPORTER_METRICS], ids=lambda m: m.name)
def test_names_follow_the_conventions(metric: object) -> None:
    name, kind = metric.name, metric.type  # type: ignore[attr-defined]  # a Metric
    assert name.endswith("_total") == (kind == "counter")
