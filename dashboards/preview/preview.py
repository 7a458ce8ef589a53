"""Draw dashboards with Grafana's own components, fed by a real Prometheus; check their schema.

This is a preview renderer, not Grafana: `@grafana/ui` and `@grafana/data` in headless Chromium.
Node, npm, Chromium and ChromeDriver are needed; the npm packages go into a folder of the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preview.chromium import Browser, BrowserError, chromium
from preview.prometheus import Asked, QueryError

HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "node": "nodejs",
    "npm": "npm",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
}
"""Program and the Debian package that has it."""

_INSTALLED_WITHIN_S = 600
_RUN_WITHIN_S = 120
_SCRAPED_EVERY_S = 1
"""By the Prometheus of the demonstration, which is what is drawn."""


class PreviewError(RuntimeError):
    """Something that the previews need is not there, or does not work."""


@dataclass(frozen=True)
class Drawn:
    """A panel as it was drawn: how much its queries and transformations left it."""

    dashboard: str
    title: str
    kind: str
    frames: int
    rows: int


def install(modules: Path, listed: Path = HERE) -> None:
    """Put the npm packages of the folder *listed* into *modules*, once for each version of its
    package-lock.json.

    Raises:
        PreviewError: a program is missing, or npm fails.
    """
    npm_of = {name: PROGRAMS[name] for name in ("node", "npm")}
    missing = [package for name, package in npm_of.items() if shutil.which(name) is None]
    if missing:
        raise PreviewError(f"not installed: on Debian, apt-get install {' '.join(missing)}")
    modules.mkdir(parents=True, exist_ok=True)
    stamp = modules / "installed"
    wanted = (listed / "package-lock.json").read_bytes()
    if stamp.exists() and stamp.read_bytes() == wanted:
        return
    for name in ("package.json", "package-lock.json"):
        shutil.copy(listed / name, modules)
    npm = ["npm", "ci", "--no-audit", "--no-fund", "--legacy-peer-deps", "--silent"]
    _run(npm, modules, _INSTALLED_WITHIN_S)
    stamp.write_bytes(wanted)


def check_schema(modules: Path, dashboards: Iterable[Path]) -> list[str]:
    """The problems of *dashboards*, a line each, by the types of ``@grafana/schema``."""
    command = ["node", str(HERE / "schema.mjs"), str(modules), *map(str, dashboards)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_RUN_WITHIN_S
    )
    if done.stderr:
        raise PreviewError(f"schema.mjs: {done.stderr.strip()[-1000:]}")
    return done.stdout.splitlines()


def draw(
    modules: Path,
    prometheus: str,
    dashboards: Iterable[Path],
    out: Path,
    seconds: float,
) -> list[Drawn]:
    """A picture of each dashboard in *out*, over the last *seconds* of *prometheus*, a URL.

    Raises:
        PreviewError: queries or panels failed; every one of them is named.
    """
    out.mkdir(parents=True, exist_ok=True)
    now = time.time()
    asked = Asked(prometheus, now - seconds, now, _SCRAPED_EVERY_S)
    found: list[Drawn] = []
    errors: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hicache-obs-preview-") as name:
        folder = Path(name)
        _bundle(modules, folder)
        try:
            with chromium(folder) as browser:
                for path in dashboards:
                    drawn, wrong = _drawn(browser, folder, asked, path, out)
                    found += drawn
                    errors += wrong
        except BrowserError as error:
            errors.append(str(error))
    if errors:
        raise PreviewError("\n".join(errors))
    return found


def empty(panels: Iterable[Drawn], allowed: Mapping[str, str]) -> list[str]:
    """The *panels* that are empty and not *allowed* to be, a line each."""
    return [
        f"panel {one.title!r} of {one.dashboard} is empty, and should not be"
        for one in panels
        if not one.rows and one.title not in allowed
    ]


def _drawn(
    browser: Browser, folder: Path, asked: Asked, path: Path, out: Path
) -> tuple[list[Drawn], list[str]]:
    """The panels of the dashboard at *path*, and what is wrong with them."""
    board = json.loads(path.read_text(encoding="utf-8"))
    answers: dict[int, Any] = {}
    annotations: list[dict[str, Any]] = []
    errors = []
    for panel in board["panels"]:
        try:
            answers[panel["id"]] = asked.answers(panel)
        except QueryError as error:
            errors.append(f"{path.stem}: panel {panel['title']!r}: {error}")
    try:
        annotations = list(asked.annotations(board))
    except QueryError as error:
        errors.append(f"{path.stem}: annotations: {error}")
    data = {
        "dashboard": board,
        "answers": answers,
        "annotations": annotations,
        "range": {"from": asked.start, "to": asked.end},
        "step": asked.step,
    }
    (folder / "data.js").write_text(f"window.PREVIEW = {json.dumps(data)};", encoding="utf-8")
    report = browser.picture("page.html", out / f"{path.stem}.png")
    errors += [f"{path.stem}: {error}" for error in report["errors"]]
    found = []
    for panel in board["panels"]:
        told = report["panels"][str(panel["id"])]
        if told["error"]:
            errors.append(f"{path.stem}: panel {panel['title']!r}: {told['error']}")
        if panel["type"] != "row":
            sizes = told["frames"], told["rows"]
            found.append(Drawn(path.stem, panel["title"], panel["type"], *sizes))
    return found, errors


def _bundle(modules: Path, folder: Path) -> None:
    shutil.copy(HERE / "page.html", folder)
    (folder / "public").mkdir()
    icons = (modules / "node_modules/@grafana/ui/dist/public").resolve()
    (folder / "public" / "build").symlink_to(icons)
    loaders = [f"--loader:.{kind}=dataurl" for kind in ("svg", "ttf", "woff", "woff2", "png")]
    command = [
        str((modules / "node_modules/.bin/esbuild").resolve()),
        str(HERE / "page.jsx"),
        "--bundle",
        "--minify",
        "--format=esm",
        "--jsx=automatic",
        "--log-level=error",
        f"--outfile={folder / 'page.js'}",
        '--define:process.env.NODE_ENV="production"',
        "--define:global=window",
        *loaders,
    ]
    _run(command, modules, _RUN_WITHIN_S)


def _run(command: list[str], modules: Path, timeout: float) -> None:
    """Run *command*, for which the packages in *modules* are those of every folder."""
    env = {**os.environ, "NODE_PATH": str(modules.resolve() / "node_modules")}
    try:
        done = subprocess.run(
            command,
            cwd=modules,
            env=env,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PreviewError(f"{command[0]}: not done after {timeout:g} s") from None
    if done.returncode:
        raise PreviewError(f"{command[0]}: {(done.stdout + done.stderr).strip()[-2000:]}")
