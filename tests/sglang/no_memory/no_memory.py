"""An SGLang plug-in for a test: the host has less free memory than SGLang keeps in reserve."""

from types import SimpleNamespace
from typing import Any

import psutil


def register() -> None:
    real = psutil.virtual_memory

    def scarce() -> Any:
        return SimpleNamespace(**{**real()._asdict(), "available": (10 << 30) + 10})

    psutil.virtual_memory = scarce
