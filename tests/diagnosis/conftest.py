"""The real Mooncake and SGLang's server starts are those of tests/sglang."""

from __future__ import annotations

from typing import Any

import pytest
from bench.harness import Mooncake
from conftest import Start, mooncake, start
from test_second_plugin import plugin
from walk import Walks

pytest.register_assert_rewrite("told")  # its assertions say both sides

__all__ = ["mooncake", "start", "walks"]


@pytest.fixture(scope="session")
def walks(mooncake: Mooncake, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The scenarios' walks."""
    return Walks(mooncake, tmp_path_factory.mktemp, start, plugin)
