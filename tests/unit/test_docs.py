"""What the project says of itself is what the code does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hicache_obs.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_readmes_tables_are_those_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "docs" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "run: python docs/tables.py"


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["", *main.commands])
def test_every_help_has_an_example(name: str) -> None:
    command = [sys.executable, "-m", "hicache_obs.cli", *filter(None, [name]), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Example: hicache-obs" in done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "hicache_obs").rglob("*.py")), ids=lambda p: p.name)
def test_a_module_is_one_room(path: Path) -> None:
    if path.name == "events.py":  # one vocabulary, and nothing but declarations
        return
    assert len(path.read_text().splitlines()) <= 300
