"""Runs of the real SGLang on the bench, kept and shared by the tests that look at them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench.fetch import SAMPLE
from bench.harness import RELEASES, Mooncake, cache_root, sglang_path, start_server
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families


def releases(*wanted: str, sample: tuple[str, ...] = SAMPLE) -> list[Any]:
    """Parameters for a test: `make test` runs those in *sample*, `make test-all` all."""
    absent = set(sample) - set(SAMPLE)
    assert not absent, f"`make test` does not fetch {sorted(absent)}: bench/fetch.py"
    return [
        pytest.param(release, marks=() if release in sample else pytest.mark.full)
        for release in wanted or RELEASES
    ]


Sample = tuple[str, dict[str, str], float]


@dataclass
class Run:
    """What one start of the server left behind."""

    ready: bool
    returncode: int
    log: str
    reports: list[dict[str, Any]]
    state_dir: Path
    scraped: str
    """The body of SGLang's own /metrics while the server stood, "" if it never did."""
    left: str
    """What the multi-process directory holds after the end, by the real collector."""
    files: list[str] = field(default_factory=list)

    @property
    def journals(self) -> list[Path]:
        return sorted(self.state_dir.glob("*.jsonl")) if self.state_dir.exists() else []

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events of all ranks, as raw JSON objects."""
        lines = [line for path in self.journals for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]

    def of(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of a kind whose fields have these values."""
        return [
            event
            for event in self.events
            if event["kind"] == kind and all(event[k] == v for k, v in fields.items())
        ]

    def samples(self, name: str, text: str | None = None, **labels: str) -> list[Sample]:
        """The samples of a metric that carry these labels."""
        body = (self.scraped or self.left) if text is None else text
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(body)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """The value of the one sample that carries these labels."""
        found = self.samples(name, **labels)
        assert len(found) == 1, f"{name}{labels}: {found or self.samples(name)}"
        return found[0][2]


Start = Callable[..., Run]


@pytest.fixture(scope="session")
def mooncake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mooncake]:
    """One real master and one real standalone client for the session."""
    listed = cache_root() / "missing-debian-packages"
    missing = (
        [name for name in listed.read_text().split() if name.startswith("lib")]
        if (listed.exists())
        else []
    )
    if missing and not os.environ.get("CI"):
        pytest.skip(f"Mooncake does not start without {' '.join(missing)} (Debian packages)")
    with Mooncake(tmp_path_factory.mktemp("mooncake")) as services:
        yield services


@pytest.fixture(scope="session")
def start(mooncake: Mooncake, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a server, let it come to READY or die, stop it; each distinct start runs once."""
    kept: dict[str, Run] = {}

    def run(release: str, **how: Any) -> Run:
        key = json.dumps([release, how], sort_keys=True, default=str)
        if key not in kept:
            kept[key] = _run(release, mooncake, tmp_path_factory.mktemp("run"), **how)
        return kept[key]

    return run


def _run(
    release: str,
    mooncake: Mooncake,
    folder: Path,
    *,
    env: dict[str, str] | None = None,
    multiproc_dir: Path | None = None,
    state_dir: Path | None = None,
    **options: Any,
) -> Run:
    if not sglang_path(release).exists():
        raise FileNotFoundError(release)
    state = state_dir or folder / "state"
    multiproc = multiproc_dir or folder / "multiproc"
    multiproc.mkdir(exist_ok=True)
    environment = {"HICACHE_OBS_STATE_DIR": str(state)}
    if options.get("metrics", True):
        environment["PROMETHEUS_MULTIPROC_DIR"] = str(multiproc)
    environment |= env or {}
    store = mooncake if options.get("storage_backend", "mooncake") == "mooncake" else None
    if options.pop("embedded", False):
        options["extra_config"] = mooncake.extra_config(standalone=False)
    with start_server(release, store, environment, folder=folder, **options) as server:
        scraped = ""
        try:
            server.wait_ready(120)
            ready = True
            if options.get("metrics", True) and not options.get("exit_when_ready"):
                scraped = server.scrape()
            code = server.wait(60) if options.get("exit_when_ready") else server.terminate()
        except RuntimeError:
            ready = False
            code = server.wait(60)
        files = sorted(path.name for path in multiproc.iterdir())
        return Run(
            ready, code, server.log, server.reports(), state, scraped, left(multiproc), files
        )


def left(directory: Path) -> str:
    """The exposition of a multi-process directory, by prometheus_client's own collector."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))
    return generate_latest(registry).decode()
