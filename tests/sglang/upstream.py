"""Does the hook table hold for an SGLang release? For the newest on the package index by default.

    upstream.py                 download the newest release and look
    upstream.py 0.5.23 ...      these releases (downloaded if they are not in the cache)

It reads source, and imports nothing of SGLang. It ends 1 where a name that is hooked is gone, a
parameter that an observer reads has another place or name, or there is a host pool class or
PoolName that the table does not know; 2 where it could not look.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from bench import fetch  # noqa: E402 - found by the line above, without an installation

from hicache_obs import sglang_pools as pools  # noqa: E402
from hicache_obs.sglang_targets import PARAMETERS, targets_for  # noqa: E402

KNOWN_CLASSES = {
    *(pool.name for pool in pools.POOL_CLASSES),
    *pools.NOT_HOOKED,
    *("HostPoolGroup", "_SharedPageEnvelopeHostBacking"),
}
_LIKE_A_POOL = re.compile(r"(PoolHost|HostPool|HostKVCache|MXFP8Host|HostBacking|HostCache)$")

Definition = ast.ClassDef | ast.FunctionDef


def findings(root: Path, release: str) -> list[str]:
    """What is not as the table says in the release unpacked at *root*; [] if all is."""
    return [*_targets(root, release), *_classes(root), *_names(root)]


def _targets(root: Path, release: str) -> Iterator[str]:
    for target in targets_for(release):
        if target.of_vendor:
            continue
        found = _definition(root, target.module, target.name)
        if found is None:
            yield f"{target.path}: is not there (hook point {target.point})"
            continue
        wanted = PARAMETERS.get(target.point, ())
        names = [a.arg for a in (*found.args.posonlyargs, *found.args.args)]
        for position, name in wanted:
            if name not in names[position : position + 1]:
                yield f"{target.path}: parameter {position} is not {name!r} but of {names}"


def _definition(root: Path, module: str, name: str) -> ast.FunctionDef | None:
    path = root.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return None
    body: list[ast.stmt] = _parsed(file).body
    found: Definition | None = None
    for part in name.split("."):
        found = next(
            (n for n in body if isinstance(n, Definition) and n.name == part),
            None,
        )
        if found is None:
            return None
        body = found.body
    return found if isinstance(found, ast.FunctionDef) else None


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _sources(root: Path, word: str) -> Iterator[tuple[Path, ast.ClassDef]]:
    for file in sorted(root.joinpath("sglang", "srt").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if word in text:
            yield from ((file, n) for n in ast.parse(text).body if isinstance(n, ast.ClassDef))


def _classes(root: Path) -> Iterator[str]:
    """Classes named like a host pool, or derived from one, however far."""
    found = list(_sources(root, "Host"))
    pool_names = {cls.name for _, cls in found if _LIKE_A_POOL.search(cls.name)}
    grown = True
    while grown:
        derived = {cls.name for _, cls in found if {_last(b) for b in cls.bases} & pool_names}
        grown = not derived <= pool_names
        pool_names |= derived
    for file, cls in found:
        if cls.name in pool_names and cls.name not in KNOWN_CLASSES:
            yield f"{file.relative_to(root)}: host pool class {cls.name} is not known"


def _last(base: ast.expr) -> str:
    return ast.unparse(base).rpartition(".")[2]


def _names(root: Path) -> Iterator[str]:
    for file, cls in _sources(root, "class PoolName("):
        if cls.name != "PoolName":
            continue
        for line in cls.body:
            value = getattr(line, "value", None)
            named = isinstance(value, ast.Constant) and isinstance(line, ast.Assign)
            if named and pools.pool_label(str(value.value)) == pools.OTHER:
                yield f"{file.relative_to(root)}: PoolName {value.value!r} is not known"


def newest() -> str:
    """The newest SGLang on the package index that pip is set up for."""
    command = [sys.executable, "-m", "pip", "index", "versions", "sglang"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.search(r"sglang \(([^)]+)\)", done.stdout)
    if match is None:
        raise LookupError(f"pip cannot say which SGLang is the newest: {done.stderr.strip()}")
    return match.group(1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="upstream.py", description=__doc__.partition("\n")[0])
    parser.add_argument("releases", nargs="*", help="SGLang releases (default: the newest)")
    options = parser.parse_args(argv)
    bad = False
    try:
        for release in options.releases or [newest()]:
            cache = fetch.cache_root()
            root = cache / "sglang" / release
            fetch.fetch("sglang", release, cache / "wheels", root)
            found = findings(root, release)
            print(f"SGLang {release}: {len(targets_for(release))} hook points,", end=" ")
            print("all as the table says" if not found else f"{len(found)} findings")
            for line in found:
                print(f"  {line}")
            bad = bad or bool(found)
    except (LookupError, OSError, subprocess.CalledProcessError) as error:
        print(f"could not look: {error}", file=sys.stderr)
        return 2
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
