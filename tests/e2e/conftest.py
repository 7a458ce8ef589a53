"""What several tests of the preview renderer need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench.harness import cache_root
from preview.preview import PROGRAMS, install


@pytest.fixture(scope="session")
def modules(program: Callable[[str, str], str]) -> Path:
    """The npm packages."""
    for name, package in PROGRAMS.items():
        program(name, package)
    folder = cache_root() / "preview"
    install(folder)
    return folder
