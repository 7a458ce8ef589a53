"""Updates as prometheus_client objects of the worker, in its multi-process mode."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicache_obs import events as ev
from hicache_obs import live, runs, wire
from hicache_obs.events import KINDS, Event
from hicache_obs.labels import safe_extra_labels
from hicache_obs.metrics import COUNTER, METRICS, WORKER_LABELS, Metric
from hicache_obs.runs import RunName
from hicache_obs.updates import updates

APPLY = """
import json, os, sys
from pathlib import Path
from hicache_obs import live, wire
from hicache_obs.updates import updates
extra = json.loads(sys.argv[2])
applier = live.LiveApplier(dict.fromkeys(live.WORKER_LABELS, "w"), extra)
for line in Path(sys.argv[1]).read_bytes().splitlines(True):
    record = wire.from_line(line)
    applier.apply(updates(record.event, record.time))
"""
READ = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
rows = [
    [family.type, sample.name, sample.labels, sample.value]
    for family in registry.collect() for sample in family.samples
]
print(json.dumps(rows))
"""
Sample = tuple[str, str, dict[str, str], float]


@pytest.fixture
def scrape(
    tmp_path: Path, run_python: Callable[..., str]
) -> Callable[..., dict[tuple[str, frozenset[tuple[str, str]]], tuple[str, float]]]:
    """Apply events in a worker and read them as SGLang's ``/metrics`` does.

    Gives type and value by name and labels, those of the worker left out.
    """

    def run(*events: Event, extra: dict[str, str] | None = None) -> Any:
        directory = tmp_path / "multiproc"
        directory.mkdir(exist_ok=True)
        lines = b"".join(wire.to_line(event, 1, 100.0) for event in events)
        (tmp_path / "events").write_bytes(lines)
        told = run_python(
            APPLY + READ,
            tmp_path / "events",
            json.dumps(extra or {}),
            PROMETHEUS_MULTIPROC_DIR=str(directory),
        )
        found = {}
        for kind, name, labels, value in json.loads(told):
            for label in WORKER_LABELS:
                assert labels.pop(label) == "w"
            key = (name, frozenset(labels.items()))
            assert key not in found
            found[key] = kind, value
        return found

    return run


def keys(metric: Metric, labels: tuple[str, ...]) -> tuple[str, frozenset[tuple[str, str]]]:
    return metric.name, frozenset(zip(metric.labels, labels, strict=True))


def test_every_update_can_be_scraped(
    example: Callable[..., Event], scrape: Callable[..., Any]
) -> None:
    events = [example(cls) for cls in KINDS.values()]
    failures = [
        example(cls, outcome="failure", error="x") for cls in (ev.BufferRegistered, ev.PoolBuilt)
    ]
    events += [*failures, example(ev.AllocatorChosen, reason="import_error")]
    expected: dict[Any, tuple[str, float]] = {}
    for event in events:
        for metric, labels, value in updates(event, 100.0):
            key = keys(metric, labels)
            before = expected.get(key, ("", 0.0))[1] if metric.type == COUNTER else 0.0
            expected[key] = metric.type, before + value
    assert scrape(*events) == expected
    assert {name for name, _ in expected} == {metric.name for metric in METRICS}


def test_the_newest_value_of_a_gauge_stands_and_counters_add_up(
    example: Callable[..., Event], scrape: Callable[..., Any]
) -> None:
    built = example(ev.PoolBuilt, role="draft", pool="draft", allocator="default", held_bytes=7)
    gone = example(ev.PoolReleased, role="draft", pool="draft", allocator="default", held_bytes=0)
    fault = example(ev.ObsError, where="live", count=2)
    found = scrape(built, fault, gone, fault)
    key = ("hicache_host_pool_bytes", frozenset({"role": "draft", "pool": "draft"}.items()))
    labels = key[1] | {("allocator", "default")}
    assert found[key[0], labels] == ("gauge", 0)
    assert found["hicache_obs_errors_total", frozenset({("where", "live")})] == ("counter", 4)


def test_extra_labels_are_on_every_series(
    example: Callable[..., Event], scrape: Callable[..., Any]
) -> None:
    found = scrape(example(ev.PoolBuilt), extra={"zone": "a", "role": "prefill"})
    assert found
    for _, labels in found:
        assert {("zone", "a"), ("extra_role", "prefill")} <= labels


def test_importing_the_module_does_not_import_prometheus_client(
    run_python: Callable[..., str],
) -> None:
    script = """
import sys
from hicache_obs import live, recorder, plugin
from hicache_obs.hooks import observers
print("prometheus_client" in sys.modules, "opentelemetry" in sys.modules, "torch" in sys.modules)
"""
    assert run_python(script).split() == ["False"] * 3


def test_a_value_class_chosen_too_early_is_refused(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    script = """
import os, sys
import prometheus_client
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
from hicache_obs import live
try:
    live.LiveApplier(dict.fromkeys(live.WORKER_LABELS, ""), {})
except RuntimeError as error:
    print(error)
"""
    told = run_python(script, tmp_path)
    assert "prometheus_client was imported before PROMETHEUS_MULTIPROC_DIR was set" in told


# Extra labels


@pytest.mark.parametrize(
    "name",
    [
        *(
            "role",
            "pool",
            "mode",
            "bytes",
            "pid",
            "le",
            "tp_rank",
            "model_name",
            "where",
            "version",
        ),
        *("host", "namespace", "pod"),
    ],
)
def test_a_clash_is_renamed_and_told(name: str) -> None:
    safe, problems = safe_extra_labels({name: "x", "zone": "a"})
    assert safe == {f"extra_{name}": "x", "zone": "a"}
    assert problems == [f"--extra-metric-labels {name!r} becomes 'extra_{name}'"]


@pytest.mark.parametrize(
    "extra",
    [{"role": "a", "extra_role": "b"}, {"extra_role": "b", "role": "a"}],
    ids=["clash first", "clash last"],
)
def test_a_clash_takes_no_other_labels_place(extra: dict[str, str]) -> None:
    assert sorted(safe_extra_labels(extra)[0].values()) == ["a", "b"]


@pytest.mark.parametrize("name", ["", "a-b", "1a", "zone a", "größe", "__name__", "__x"])
def test_what_is_no_label_name_is_left_out_and_told(name: str) -> None:
    safe, problems = safe_extra_labels({name: "x", "zone": "a"})
    assert safe == {"zone": "a"}
    assert problems == [f"--extra-metric-labels {name!r} is no label name"]


def test_ordinary_labels_stay() -> None:
    extra = {"zone": "a", "_x": "", "Team": "größe"}
    assert safe_extra_labels(extra) == (extra, [])


# Gauge files


def gauge(directory: Path, pid: int, mode: str = live.GAUGE_MODE) -> Path:
    path = directory / f"gauge_{mode}_{pid}.db"
    path.touch()
    return path


def dead_run(state: Path, pid: int) -> None:
    (state / f"abc-{pid}-{pid}-01234567.alive").touch()


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    """The multi-process directory and the state directory."""
    made = tmp_path / "multiproc", tmp_path / "state"
    for directory in made:
        directory.mkdir()
    return made


def own() -> RunName:
    return RunName(9, "abc", 4242, "abc-9-4242-00000000")


def test_gauges_of_dead_runs_and_of_the_own_pid_go(dirs: tuple[Path, Path]) -> None:
    multiproc, state = dirs
    dead_run(state, 77)
    gone = [gauge(multiproc, 77), gauge(multiproc, 4242)]
    live.remove_stale_gauges(multiproc, state, own())
    assert [path for path in gone if path.exists()] == []


def test_other_files_stay(dirs: tuple[Path, Path]) -> None:
    multiproc, state = dirs
    dead_run(state, 77)
    kept = [
        gauge(multiproc, 77, "all"),
        gauge(multiproc, 77, "mostrecent"),
        gauge(multiproc, 78),
        gauge(multiproc, 4242, "liveall"),
        multiproc / "counter_77.db",
        multiproc / "histogram_4242.db",
    ]
    for path in kept:
        path.touch()
    live.remove_stale_gauges(multiproc, state, own())
    assert all(path.exists() for path in kept)


HOLD = """
import sys
from pathlib import Path
from hicache_obs import runs
for name in sys.argv[2:]:
    runs.hold_alive_lock(Path(sys.argv[1]), name)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("pid", [77, 4242], ids=["of another", "of the own pid"])
def test_gauges_of_a_living_run_stay(
    dirs: tuple[Path, Path], start_python: Callable[..., subprocess.Popen[str]], pid: int
) -> None:
    multiproc, state = dirs
    dead_run(state, pid)
    process = start_python(HOLD, state, f"abc-5-{pid}-0a0a0a0a")
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    kept = gauge(multiproc, pid)
    live.remove_stale_gauges(multiproc, state, own())
    assert kept.exists()


def test_without_a_state_directory_only_the_own_pid_goes(dirs: tuple[Path, Path]) -> None:
    multiproc, _ = dirs
    mine, other = gauge(multiproc, 4242), gauge(multiproc, 77)
    live.remove_stale_gauges(multiproc, None, own())
    assert (mine.exists(), other.exists()) == (False, True)


def test_the_own_run_is_not_asked_whether_it_lives(
    dirs: tuple[Path, Path], run_python: Callable[..., str]
) -> None:
    multiproc, state = dirs
    script = """
import subprocess, sys
from pathlib import Path
from hicache_obs import live, runs
multiproc, state = map(Path, sys.argv[1:])
own = runs.RunName.new()
runs.hold_alive_lock(state, own.text)
live.remove_stale_gauges(multiproc, state, own)
code = "import sys, pathlib; from hicache_obs import runs;"
code += "print(runs.is_alive(pathlib.Path(sys.argv[1]), sys.argv[2]))"
print(subprocess.check_output([sys.executable, "-c", code, str(state), own.text], text=True))
"""
    assert run_python(script, multiproc, state).strip() == "True"


def test_a_vanished_directory_is_no_error(dirs: tuple[Path, Path], tmp_path: Path) -> None:
    _, state = dirs
    dead_run(state, 77)
    live.remove_stale_gauges(tmp_path / "gone", state, own())


def test_a_run_of_another_user_does_not_stop_the_removal(
    open_dir: Path, run_python: Callable[..., str]
) -> None:
    dead_run(open_dir, 77)
    (open_dir / "abc-77-77-01234567.alive").chmod(0o000)
    script = """
import sys
from pathlib import Path
from hicache_obs import live, runs
directory, own = Path(sys.argv[1]), runs.RunName.new()
drop_root()
path = directory / f"gauge_livemostrecent_{own.pid}.db"
path.touch()
live.remove_stale_gauges(directory, directory, own)
print(path.exists())
"""
    assert run_python(script, open_dir).strip() == "False"


@pytest.mark.parametrize(("value", "path"), [("", None), ("/tmp/x", Path("/tmp/x"))])
def test_the_multi_process_directory(
    monkeypatch: pytest.MonkeyPatch, value: str, path: Path | None
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", value)
    assert live.multiproc_dir() == path


def test_no_multi_process_directory() -> None:
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    assert live.multiproc_dir() is None


def test_names_of_files_are_as_prometheus_client_makes_them(
    dirs: tuple[Path, Path],
    tmp_path: Path,
    example: Callable[..., Event],
    run_python: Callable[..., str],
) -> None:
    multiproc, state = dirs
    (tmp_path / "events").write_bytes(wire.to_line(example(ev.PoolBuilt), 1, 1.0))
    script = APPLY + "\nprint(os.getpid())"
    pid = int(
        run_python(script, tmp_path / "events", "{}", PROMETHEUS_MULTIPROC_DIR=str(multiproc))
    )
    names = {path.name for path in multiproc.iterdir()}
    assert names == {f"gauge_livemostrecent_{pid}.db", f"counter_{pid}.db"}
    dead_run(state, pid)
    live.remove_stale_gauges(multiproc, state, own())
    assert [path.name for path in multiproc.iterdir()] == [f"counter_{pid}.db"]
    assert [run.pid for run in runs.list_runs(state)] == [pid]
