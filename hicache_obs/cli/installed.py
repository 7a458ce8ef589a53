"""Reading an installed SGLang and Mooncake without importing them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path

from hicache_obs.sglang_targets import Target

FIRST_MOONCAKE_ALLOCATOR = (0, 3, 8, 1)
"""0.3.8.post1: the first release with MooncakeHostMemAllocator (0.3.7.post2 lacks it)."""


@dataclass(frozen=True)
class Installed:
    """An SGLang on disk: its release and its package folder."""

    release: str
    package: Path


def find_sglang(path: Path | None) -> Installed:
    """The SGLang in the folder *path* (which holds ``sglang/``), or the one Python would import.

    Raises:
        FileNotFoundError: there is none.
    """
    if path is not None:
        package = path / "sglang"
    else:
        spec = util.find_spec("sglang")
        locations = list(spec.submodule_search_locations or ()) if spec else []
        if not locations:
            raise FileNotFoundError(
                "no SGLang is installed for this Python; run doctor in SGLang's environment or "
                "name the folder that holds sglang/ with --sglang-path"
            )
        package = Path(locations[0])
    if not (package / "srt").is_dir():
        raise FileNotFoundError(f"{package} holds no SGLang (no folder srt)")
    return Installed(_release(package), package)


def _release(package: Path) -> str:
    file = package / "_version.py"
    if file.exists():
        found = re.search(r"^__version__\s*=.*?['\"]([^'\"]+)['\"]", file.read_text("utf-8"), re.M)
        if found:
            return found[1]
    for dist in metadata.distributions(name="sglang", path=[str(package.parent)]):
        return dist.version
    return "unknown"


def has_target(installed: Installed, target: Target) -> bool:
    """Whether the installed source defines a hook point (a function, or a class's method)."""
    parts = target.module.split(".")[1:]
    file = installed.package.joinpath(*parts).with_suffix(".py")
    if not file.exists():
        file = installed.package.joinpath(*parts, "__init__.py")
    return file.exists() and target.name in _names(file)


@lru_cache(maxsize=64)
def _names(file: Path) -> frozenset[str]:
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return frozenset(names)


def mooncake_release() -> str:
    """The installed Mooncake's release, "" if there is none."""
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower()
        if name.startswith("mooncake-transfer-engine"):
            return dist.version
    return ""


def mooncake_has_allocator(release: str) -> bool:
    """Whether this Mooncake has the allocator that SGLang asks for."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?", release)
    if found is None:
        return False
    return tuple(int(part or 0) for part in found.groups()) >= FIRST_MOONCAKE_ALLOCATOR
