"""Answer for two packages that SGLang imports and never reaches on the bench.

``torchvision`` and ``sgl_kernel`` are CUDA builds of gigabytes. SGLang names them at module level
(0.5.11 to 0.5.23), but no code that builds, pins or registers a host pool calls into them. This
folder stands first on ``PYTHONPATH``, so the interpreter runs this file before anything else.

Calling one of the names says so instead of pretending to work.
"""

from __future__ import annotations

import importlib.abc
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any

ABSENT_PACKAGES = ("torchvision", "sgl_kernel")


class _AbsentMeta(type):
    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Absent(metaclass=_AbsentMeta):
    """What every attribute of an absent package resolves to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("this package is not on the bench (see tests/sglang/bench/absent)")


def _module_getattr(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module: Any = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0"
        module.__getattr__ = _module_getattr
        return module  # type: ignore[no-any-return]

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in ABSENT_PACKAGES:
            return ModuleSpec(fullname, _Loader(), is_package=True)
        return None


sys.meta_path.append(_Finder())
