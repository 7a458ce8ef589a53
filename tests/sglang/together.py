"""Several servers at the same time, and what is left of their runs."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.harness import Mooncake, Server, start_server
from conftest import Run, left
from journals import served, values
from runs_of import MLA, UP

from hicache_obs.exporter.host import Host


class Together:
    """Servers that stand at the same time, each with a multi-process directory of its own."""

    def __init__(self, stack: ExitStack, mooncake: Mooncake, folder: Path, release: str) -> None:
        self._stack, self._mooncake = stack, mooncake
        self._folder, self._release = folder, release
        self._states: dict[str, Path] = {}

    def start(self, name: str, state: Path | None = None, **how: Any) -> Server:
        """Start one more server; `state` is its host's state directory (default: its own)."""
        folder = self._folder / name
        (folder / "multiproc").mkdir(parents=True)
        self._states[name] = state or folder / "state"
        env = {
            "HICACHE_OBS_STATE_DIR": str(self._states[name]),
            "PROMETHEUS_MULTIPROC_DIR": str(folder / "multiproc"),
        }
        options = {"folder": folder, **MLA, **how}
        server = start_server(self._release, self._mooncake, env, **options)
        return self._stack.enter_context(server)

    def state(self, name: str) -> Path:
        """The state directory of a server."""
        return self._states[name]

    def end(self, servers: dict[str, Server]) -> dict[str, Run]:
        """Let each come to READY or die, scrape those that stand, then stop them all."""
        scraped = {name: _scraped(server) for name, server in servers.items()}
        codes = {}
        for name, server in servers.items():
            if scraped[name] is not None and server.process.poll() is None:
                server.process.terminate()
        for name, server in servers.items():
            codes[name] = server.wait(60)
        return {
            name: Run(
                ready=scraped[name] is not None,
                returncode=codes[name],
                log=server.log,
                reports=server.reports(),
                state_dir=self._states[name],
                scraped=scraped[name] or "",
                left=left(self._folder / name / "multiproc"),
            )
            for name, server in servers.items()
        }


def _scraped(server: Server) -> str | None:
    try:
        server.wait_ready(150)
    except RuntimeError:
        return None
    return server.scrape()


Journal = list[dict[str, Any]]


def journals(run: Run) -> list[Journal]:
    """The events of each run in the state directory, in the order of the ranks."""
    read = [[json.loads(line) for line in path.read_text().splitlines()] for path in run.journals]
    return sorted(read, key=lambda events: first(events, "worker_starting")["dp_rank"])


def first(events: Journal, kind: str) -> dict[str, Any]:
    return next(event for event in events if event["kind"] == kind)


def told(events: Journal, kind: str, **fields: Any) -> Journal:
    """The events of one journal that are of a kind and have these values."""
    return [e for e in events if e["kind"] == kind and all(e[k] == v for k, v in fields.items())]


def exporter(*states: Path) -> Host:
    """What an exporter of these directories serves now."""
    host = Host(states, keep=False)
    host.refresh()
    return host


def after_death(state: Path) -> Host:
    """What an exporter serves once the last rank is dead, which may be a moment after its
    server's end."""
    host = exporter(state)
    until = time.monotonic() + 30
    while 1 in values(host, UP):
        assert time.monotonic() < until
        time.sleep(0.1)
        host.refresh()
    return host


def roles_of(host: Host, name: str) -> set[tuple[str, str]]:
    """Server port and engine type of the rows of a series that are not 0."""
    rows = served(host).get(name, {}).items()
    labels = [dict(found) for found, value in rows if value]
    return {(each["server_port"], each["engine_type"]) for each in labels}
