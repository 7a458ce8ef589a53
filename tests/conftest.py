"""What all tests share: the real programs of other projects."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def program() -> Callable[[str, str], str]:
    """Find a program that a Debian package brings; without it a test cannot say anything."""

    def find(name: str, package: str) -> str:
        found = shutil.which(name)
        if found is None and os.environ.get("CI"):
            pytest.fail(f"{name} is not installed (Debian package {package})")
        if found is None:
            pytest.skip(f"{name} is not installed (Debian package {package})")
        return str(found)

    return find


@pytest.fixture
def promtool(program: Callable[[str, str], str]) -> str:
    """The real promtool."""
    return program("promtool", "prometheus")
