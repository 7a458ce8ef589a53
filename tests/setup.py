"""Set up what a command of the Makefile needs; says what it does, and does it once.

    python3 tests/setup.py lint|demo|dashboards|test|all

Needs nothing but Python 3.10 or later: it makes the virtual environment that the rest uses.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("HICACHE_OBS_CACHE") or ROOT / ".cache")
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
BENCH = ROOT / "tests" / "sglang" / "bench"
BUILDER = ROOT / "dashboards" / "requirements.txt"
MISSING = CACHE / "missing-debian-packages"

_MOONCAKE = "everything that starts Mooncake"
_BROWSER = "what is drawn in a browser: the status page, the previews of the dashboards"
_NODE = "the schemas of the Prometheus operator's objects and of the dashboards, their previews"
_DEPLOY = "the checks of the systemd unit and of the compose file"
_PAGE = "the page of a failure, and the checks of rules and routes"
# Debian package: how to tell that it is there, and what cannot run without it.
DEBIAN = {
    "libibverbs1": ("lib:libibverbs.so.1", _MOONCAKE),
    "librdmacm1": ("lib:librdmacm.so.1", _MOONCAKE),
    "libnuma1": ("lib:libnuma.so.1", _MOONCAKE),
    "liburing2": ("lib:liburing.so.2", _MOONCAKE),
    "libjemalloc2": ("lib:libjemalloc.so.2", _MOONCAKE),
    "prometheus": ("program:promtool", _PAGE),
    "prometheus-alertmanager": ("program:prometheus-alertmanager", _PAGE),
    "chromium": ("program:chromium", _BROWSER),
    "chromium-driver": ("program:chromedriver", _BROWSER),
    "nodejs": ("program:node", _NODE),
    "npm": ("program:npm", _NODE),
    "systemd": ("program:systemd-analyze", _DEPLOY),
    "docker-compose": ("program:docker-compose", _DEPLOY),
    "e2fsprogs": ("program:mkfs.ext4", "the test of a frozen file system"),
}
FETCH = {
    "lint": [],
    "demo": ["0.5.14"],
    "dashboards": ["0.5.14"],
    "test": ["--sample"],
    "all": ["--all"],
}
NEEDS = {
    "demo": (_MOONCAKE, _PAGE),
    "dashboards": (_MOONCAKE, _PAGE, _BROWSER, _NODE),
}
"""What a command needs of Debian; the tests need everything."""


def main(what: str) -> int:
    CACHE.mkdir(parents=True, exist_ok=True)
    make_venv(bench=what != "lint")
    if what != "lint":
        needed = NEEDS.get(what, tuple(why for _, why in DEBIAN.values()))
        install_debian({name: how for name, how in DEBIAN.items() if how[1] in needed})
        fetch(what)
    return 0


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True)


def make_venv(*, bench: bool) -> None:
    """Our package and its test tools; with *bench* also torch, Mooncake and SGLang's imports."""
    sources = [ROOT / "pyproject.toml", BENCH / "requirements.txt", BUILDER]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = CACHE / "venv-stamp"
    have = stamp.read_text().split() if stamp.exists() and PYTHON.exists() else []
    if have[:1] == [wanted] and (not bench or "bench" in have):
        return
    if bench and sys.version_info < (3, 11):
        sys.exit("setup: the bench needs Python 3.11 or later: make PYTHON=python3.11 ...")
    asked = [PYTHON, "-m", "pip", "--version"]
    if not PYTHON.exists() or subprocess.run(asked, check=False, capture_output=True).returncode:
        say(f"making a virtual environment in {VENV.relative_to(ROOT)}")
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=False)
        if made.returncode:
            sys.exit("setup: no virtual environment; on Debian: apt-get install python3-venv")
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if bench:
        say("installing torch, Mooncake and what SGLang imports (about 2 GB, a few minutes)")
        run(*pip, "-r", BENCH / "requirements.txt")
    say("installing hicache-obs and its test tools")
    run(*pip, "-e", f"{ROOT}[dev]")
    run(*pip, "--no-deps", "-r", BUILDER)
    stamp.write_text(f"{wanted} {'bench' if bench else ''}")


def present(how: str) -> bool:
    kind, name = how.split(":")
    if kind == "program":
        return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    return name in listed.stdout


def install_debian(packages: dict[str, tuple[str, str]]) -> None:
    """Install missing Debian packages when root; name what is missing and skipped otherwise."""
    missing = [name for name, (how, _) in packages.items() if not present(how)]
    MISSING.unlink(missing_ok=True)
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"installing Debian packages: {' '.join(missing)}")
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        apt = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0"]
        quiet = {"env": environment, "stdout": subprocess.DEVNULL}
        subprocess.run([*apt, "update"], check=False, **quiet)
        apt += ["install", "-y", "--no-install-recommends"]
        if subprocess.run([*apt, *missing], check=False, **quiet).returncode:
            for name in missing:  # one name that this system does not know stops all of them
                subprocess.run([*apt, name], check=False, **quiet)
        missing = [name for name in missing if not present(packages[name][0])]
    if missing:
        MISSING.write_text("".join(f"{name}\n" for name in missing))
        for name in missing:
            say(f"MISSING Debian package {name}: skipped without it: {packages[name][1]}")
        say(f"as root: apt-get install {' '.join(missing)}")


def fetch(what: str) -> None:
    """Unpack the SGLang releases (7 to 40 MB each) into the cache."""
    run(PYTHON, BENCH / "fetch.py", *FETCH[what])
    if what in ("test", "all"):
        run(PYTHON, BENCH / "fetch.py", "--mooncake-old")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in FETCH:
        sys.exit(f"usage: python3 tests/setup.py {'|'.join(FETCH)}")
    try:
        sys.exit(main(sys.argv[1]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"setup: {' '.join(map(str, error.cmd))} ended with {error.returncode}")
