#!/usr/bin/env python3
"""Fetch the SGLang releases that the bench runs: wheel by pip, unpacked one folder a release.

    fetch.py 0.5.14 0.5.23     these releases
    fetch.py --sample          one of each family of code: enough for continuous integration
    fetch.py --all             every release of harness.RELEASES
    fetch.py --mooncake-old    the last Mooncake without MooncakeHostMemAllocator

Only the standard library is used. Nothing is installed: SGLang's own dependencies are CUDA wheels
of many GB that no host-pool code path needs (see requirements.txt for what is).
"""

from __future__ import annotations

import argparse
import ast
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

BENCH = Path(__file__).resolve().parent
SAMPLE = ("0.5.12", "0.5.14", "0.5.16", "0.5.20", "0.5.23")
MOONCAKE = "mooncake-transfer-engine-non-cuda"
MOONCAKE_OLD = "0.3.7.post2"


def main(argv: list[str] | None = None) -> int:
    """Fetch what the command line names; the exit code."""
    parser = argparse.ArgumentParser(prog="fetch.py", description=__doc__.partition("\n")[0])
    parser.add_argument("releases", nargs="*", help="SGLang releases, as 0.5.14")
    parser.add_argument("--all", action="store_true", help="every supported release")
    parser.add_argument(
        "--sample", action="store_true", help="one of each family: " + " ".join(SAMPLE)
    )
    parser.add_argument(
        "--python-version", help="of the interpreter that will run the bench (default: this one's)"
    )
    parser.add_argument("--mooncake-old", action="store_true", help=f"Mooncake {MOONCAKE_OLD}")
    options = parser.parse_args(argv)

    releases = list(options.releases)
    releases += SAMPLE if options.sample else ()
    releases += known_releases() if options.all else ()
    if not releases and not options.mooncake_old:
        parser.error("name a release, --sample, --all or --mooncake-old")
    unknown = sorted(set(releases) - set(known_releases()))
    if unknown:
        parser.error(f"not a supported release: {' '.join(unknown)}")

    cache, python = cache_root(), options.python_version
    for release in dict.fromkeys(releases):
        fetch("sglang", release, cache / "wheels", cache / "sglang" / release, python)
    if options.mooncake_old:
        fetch(MOONCAKE, MOONCAKE_OLD, cache / "wheels", cache / "mooncake" / MOONCAKE_OLD, python)
    return 0


def cache_root() -> Path:
    """Return the folder to fill; the same as ``harness.cache_root``."""
    if os.environ.get("HICACHE_OBS_CACHE"):
        return Path(os.environ["HICACHE_OBS_CACHE"])
    checkout = BENCH.parents[2]
    in_checkout = (checkout / "pyproject.toml").is_file()
    return checkout / ".cache" if in_checkout else Path.home() / ".cache" / "hicache-obs"


def known_releases() -> tuple[str, ...]:
    """Read ``RELEASES`` out of harness.py without importing it."""
    for node in ast.parse((BENCH / "harness.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "RELEASES":
            return tuple(ast.literal_eval(node.value))
    raise LookupError("harness.py names no RELEASES")


def fetch(
    distribution: str, version: str, wheels: Path, folder: Path, python: str | None = None
) -> None:
    """Download one wheel and unpack it into `folder`, in one step; keep what is there."""
    if folder.exists():
        print(f"{distribution} {version}: already in {folder}")
        return
    wheel = find_wheel(distribution, version, wheels)
    if wheel is None:
        wheel = download(distribution, version, wheels, python)
    print(f"{distribution} {version}: unpacking {wheel.name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{version}.", dir=folder.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(temporary)
        # Compiled once here: a child may run with PYTHONDONTWRITEBYTECODE and pay at every start.
        compileall.compile_dir(temporary, quiet=2, workers=0, stripdir=temporary, prependdir=folder)
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{distribution} {version}: ready in {folder}")


def find_wheel(distribution: str, version: str, wheels: Path) -> Path | None:
    """Return a wheel that an earlier run has left, if any."""
    found = sorted(wheels.glob(f"{distribution.replace('-', '_')}-{version}-*.whl"))
    return found[0] if found else None


def download(distribution: str, version: str, wheels: Path, python: str | None = None) -> Path:
    """Download one wheel with pip, without its dependencies."""
    print(f"{distribution} {version}: downloading")
    wheels.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--only-binary=:all:", "--dest", str(wheels)]
    command += ["--python-version", python] if python else []
    subprocess.run([*command, f"{distribution}=={version}"], check=True)
    wheel = find_wheel(distribution, version, wheels)
    if wheel is None:
        raise FileNotFoundError(f"pip left no wheel of {distribution} {version} in {wheels}")
    return wheel


if __name__ == "__main__":
    sys.exit(main())
