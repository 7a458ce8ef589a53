"""Walk a scenario on one release, with the plug-in or without it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import BENCH, Mooncake, free_port, mooncake_path, run_python
from scenario import Scenario

PROGRAMS = Path(__file__).with_name("programs")
A_WORKER = """
from dataclasses import replace
from hicache_obs import recorder

def register():
    known = {{"hicache": True, "storage_backend": "mooncake", "mode": {mode!r}}}
    recorder.get().worker = replace(recorder.UNKNOWN_WORKER, **known)
"""
"""Stands in for ``Scheduler.__init__`` where a scenario has no scheduler."""
BEFORE = """
def register():
    exec({code!r}, {{}})
"""
_RAN = ("case", "absent", "ok", "returned", "error_type", "registered_bytes")


@dataclass
class Walked:
    """What SGLang did, comparable with another walk; and where it was recorded."""

    did: list[Any]
    state: Path
    log: str
    scraped: str = ""
    """What the worker's own ``/metrics`` said while it stood."""


class Walks:
    """The walks of a session, on its *mooncake*; *start* and *plugin* are those of tests/sglang."""

    def __init__(
        self, mooncake: Mooncake, folder: Callable[[str], Path], start: Any, plugin: Any
    ) -> None:
        self._mooncake, self._folder = mooncake, folder
        self._start, self._plugin = start, plugin
        self._kept: dict[tuple[str, str, bool], Walked] = {}

    def walk(self, scenario: Scenario, release: str, *, observed: bool) -> Walked:
        """Do what the scenario says, once."""
        key = scenario.name, release, observed
        if key not in self._kept:
            self._kept[key] = self._walk(scenario, release, observed=observed)
        return self._kept[key]

    def _walk(self, scenario: Scenario, release: str, *, observed: bool) -> Walked:
        folder = self._folder(scenario.name)
        env = dict(scenario.env)
        if not observed:
            env["HICACHE_OBS_ENABLED"] = "0"
        paths: list[Path] = []
        if scenario.mooncake:
            paths.append(mooncake_path(scenario.mooncake))
        if scenario.way == "server":
            return self._server(scenario, release, env, paths, folder)
        return self._program(scenario, release, env, paths, folder)

    def _server(
        self,
        scenario: Scenario,
        release: str,
        env: dict[str, str],
        paths: list[Path],
        folder: Path,
    ) -> Walked:
        options = dict(scenario.options)
        for name in ("attach_config", "failing_config", "second_config"):
            if isinstance(options.get(name), str):
                options[name] = self._store(options[name])
        if scenario.store == "none":
            options.setdefault("storage_backend", "none")
        elif "extra_config" not in options:
            options["extra_config"] = self._store(scenario.store, scenario.config)
        if scenario.before:
            code = BEFORE.format(code=scenario.before)
            paths.append(self._plugin(folder / "before", "aa_before", "aa_before:register", code))
        run = self._start(release, env=env, paths=paths, state_dir=folder / "state", **options)
        did = [run.ready, run.returncode if run.ready else run.returncode != 0]
        for report in run.reports:
            pools = [(p["class"], p["allocator"], p["bytes"]) for p in report["pools"]]
            steps = [(s["step"], s["success"], s["message"]) for s in report["steps"]]
            did.append((_still(report["error"]), pools, steps))
        return Walked(did, run.state_dir, run.log, run.scraped)

    def _program(
        self,
        scenario: Scenario,
        release: str,
        env: dict[str, str],
        paths: list[Path],
        folder: Path,
    ) -> Walked:
        if "HICACHE_OBS_ENABLED" not in env:
            mode = "standalone" if scenario.store in ("standalone", "no_client") else "embedded"
            worker = A_WORKER.format(mode=mode)
            paths.append(self._plugin(folder / "worker", "zz_worker", "zz_worker:register", worker))
        env |= {
            "HICACHE_OBS_STATE_DIR": str(folder / "state"),
            "SCENARIO_CODE": scenario.code,
            "SCENARIO_BENCH": str(BENCH),
            "SCENARIO_ALLOCATOR": str(scenario.options.get("allocator", "mooncake")),
        }
        arguments: list[str] = []
        program = PROGRAMS / f"{scenario.way}.py"
        if scenario.way == "path":
            program = BENCH / "registration_paths.py"
            arguments = ["--plugins", "--only", scenario.case, *["--fails"] * scenario.fails]
        with contextlib.ExitStack() as stack:
            if scenario.store in ("no_client", "no_segment"):
                with_client = scenario.store == "no_client"
                own = stack.enter_context(Mooncake(folder / "mooncake", standalone=with_client))
                store = own.extra_config(**scenario.config)
                if with_client:
                    env["CLIENT_PID"] = str(own.client_pid)
            else:
                store = self._store(scenario.store, scenario.config)
            env["SCENARIO_STORE"] = json.dumps(store)
            done = run_python(release, program, arguments, env, paths)
        lines = done.stdout.splitlines()
        if scenario.way == "path":
            cases = [json.loads(line) for line in lines if line[:1] == "{"]
            return Walked([[c.get(k) for k in _RAN] for c in cases], folder / "state", done.stderr)
        return Walked([done.returncode, lines], folder / "state", done.stderr)

    def _store(self, name: str, over: dict[str, Any] | None = None) -> dict[str, Any]:
        """The extra configuration of the store of that name."""
        elsewhere, over = f"127.0.0.1:{free_port()}", over or {}
        if name == "not_a_client":
            elsewhere = self._mooncake.master_address
        if name in ("nowhere", "not_a_client"):
            return self._mooncake.extra_config(client_server_address=elsewhere, **over)
        if name == "no_master":
            over = {"master_server_address": elsewhere, **over}
        return self._mooncake.extra_config(standalone=name == "standalone", **over)


def _still(error: dict[str, str] | None) -> dict[str, str] | None:
    """What a rank raised, without what no two runs have in common."""
    return error and {k: re.sub(r"0x[0-9a-f]+|[0-9.]+ GB", "#", v) for k, v in error.items()}
