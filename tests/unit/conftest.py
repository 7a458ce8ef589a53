"""What the unit tests share: counted faults from zero, settings, example events, child Pythons."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import settings as hypothesis_settings

from hicache_obs import config, faults
from hicache_obs.events import Event

ROOT = Path(faults.__file__).parents[1]
EXAMPLE_VALUES: dict[object, Any] = {str: "text", int: 4096, float: 1.5, bool: True}

hypothesis_settings.register_profile("unit", deadline=None, database=None, max_examples=60)
hypothesis_settings.load_profile("unit")


@pytest.fixture(autouse=True)
def _fresh_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_counts", {})
    monkeypatch.setattr(faults, "_unreported", {})


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(config.PREFIX) or name == "PROMETHEUS_MULTIPROC_DIR":
            monkeypatch.delenv(name)


@pytest.fixture
def counted() -> Callable[[], dict[str, int]]:
    """The faults of this test so far: number by place."""
    return lambda: dict(faults._counts)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., config.Config]:
    """Settings with a state directory in *tmp_path*; keywords are variables without prefix."""

    def make(**variables: str) -> config.Config:
        named = {"STATE_DIR": str(tmp_path / "state"), **variables}
        loaded = config.load({config.PREFIX + name: text for name, text in named.items()})
        assert not loaded.problems
        return loaded

    return make


def example_value(hint: Any) -> Any:
    """A value of a field's type."""
    if hint in EXAMPLE_VALUES:
        return EXAMPLE_VALUES[hint]
    inner = [example_value(arg) for arg in get_args(hint) if arg not in (Ellipsis, type(None))]
    if get_origin(hint) is dict:
        return {inner[0]: inner[1]}
    return tuple(inner) if get_origin(hint) is tuple else inner[0]


@pytest.fixture(scope="session")
def example() -> Callable[..., Event]:
    """An event of a class with a value in every field; keywords replace some."""

    def make(cls: type[Event], **given: object) -> Event:
        hints = get_type_hints(cls)
        values = {field.name: example_value(hints[field.name]) for field in fields(cls)}
        if "outcome" in values:
            values.update(outcome="success", error_type="", error="")
        return cls(**{**values, **given})

    return make


@pytest.fixture(scope="session")
def required_fields() -> Callable[[type[Event]], list[str]]:
    return lambda cls: [f.name for f in fields(cls) if f.default is MISSING]


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that other users reach (pytest's own is its owner's)."""
    directory = Path(tempfile.mkdtemp(prefix="hicache-obs-test-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


def _environment(variables: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **variables}


DROP_ROOT = """
def drop_root():
    import os
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a script in a Python of its own and return what it printed; it must end well.

    The script finds ``drop_root()``: file permissions say nothing to root.
    """

    def run(script: str, *arguments: object, **variables: str) -> str:
        command = [sys.executable, "-c", DROP_ROOT + script, *map(str, arguments)]
        done = subprocess.run(
            command,
            env=_environment(variables),
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def start_python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a script in a Python of its own, with pipes to it; killed when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            env=_environment(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
