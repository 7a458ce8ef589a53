"""Draw dashboards with Grafana's own components, fed by a real Prometheus; check their schema.

This is a preview renderer, not Grafana: `@grafana/ui` and `@grafana/data` in headless Chromium.
Node, npm, Chromium and ChromeDriver are needed; the npm packages go into a folder of the cache.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from chromium import FLAGS
from queries import panels, substituted
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "node": "nodejs",
    "npm": "npm",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
}
"""Program and the Debian package that has it."""

_POINTS = 240
_FONTS = "/public/fonts/"
"""Grafana's fonts are not on npm; the system's are used."""
_FLAGS = (*FLAGS, "--force-device-scale-factor=1", "--hide-scrollbars")


class PreviewError(RuntimeError):
    """Something that the previews need is not there, or does not work."""


@dataclass(frozen=True)
class Drawn:
    """A panel as it was drawn: how many rows its queries had."""

    dashboard: str
    title: str
    rows: int


def install(modules: Path) -> None:
    """Put the npm packages into *modules*, once for each version of package.json.

    Raises:
        PreviewError: a program is missing, or npm fails.
    """
    missing = [package for name, package in PROGRAMS.items() if shutil.which(name) is None]
    if missing:
        raise PreviewError(f"not installed: on Debian, apt-get install {' '.join(missing)}")
    modules.mkdir(parents=True, exist_ok=True)
    stamp = modules / "installed"
    wanted = (HERE / "package-lock.json").read_bytes()
    if stamp.exists() and stamp.read_bytes() == wanted:
        return
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, modules)
    _run(["npm", "ci", "--no-audit", "--no-fund", "--legacy-peer-deps", "--silent"], modules)
    stamp.write_bytes(wanted)


def check_schema(modules: Path, dashboards: Iterable[Path]) -> list[str]:
    """The problems of *dashboards*, a line each, by the types of ``@grafana/schema``."""
    command = ["node", str(HERE / "schema.mjs"), str(modules), *map(str, dashboards)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stderr:
        raise PreviewError(f"schema.mjs: {done.stderr.strip()[-1000:]}")
    return done.stdout.splitlines()


def draw(
    modules: Path, prometheus: str, dashboards: Iterable[Path], out: Path, seconds: float
) -> list[Drawn]:
    """A picture of each dashboard in *out*, over the last *seconds* of *prometheus*, a URL.

    Raises:
        PreviewError: a query or a panel failed.
    """
    folder = modules / "page"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _bundle(modules, folder)
    out.mkdir(parents=True, exist_ok=True)
    to = time.time()
    found: list[Drawn] = []
    with _served(folder) as address, _browser() as browser:
        for path in dashboards:
            board = json.loads(path.read_text(encoding="utf-8"))
            answers = {
                panel["id"]: _answers(prometheus, panel, to - seconds, to)
                for panel in panels(board)
                if "targets" in panel
            }
            data = {"dashboard": board, "answers": answers, "from": to - seconds, "to": to}
            (folder / "data.js").write_text(f"window.PREVIEW = {json.dumps(data)};")
            _picture(browser, f"{address}/page.html", out / f"{path.stem}.png", board)
            for panel in panels(board):
                rows = sum(map(len, answers.get(panel["id"], {}).values()))
                found.append(Drawn(path.stem, panel["title"], rows))
    return found


def _bundle(modules: Path, folder: Path) -> None:
    shutil.copy(HERE / "page.html", folder)
    (folder / "public").mkdir()
    (folder / "public" / "build").symlink_to(modules / "node_modules/@grafana/ui/dist/public")
    # The page's modules are looked for beside it.
    page = shutil.copy(HERE / "page.jsx", modules / "page.jsx")
    loaders = [f"--loader:.{kind}=dataurl" for kind in ("svg", "ttf", "woff", "woff2", "png")]
    _run(
        [
            str(modules / "node_modules/.bin/esbuild"),
            str(page),
            "--bundle",
            "--minify",
            "--log-level=error",
            f"--outfile={folder / 'page.js'}",
            '--define:process.env.NODE_ENV="production"',
            "--define:global=window",
            *loaders,
        ],
        modules,
    )


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PreviewError(f"{command[0]}: {(done.stdout + done.stderr).strip()[-2000:]}")


def _answers(prometheus: str, panel: Mapping[str, Any], start: float, end: float) -> dict[str, Any]:
    """What Prometheus says to each query of *panel*, by its letter."""
    step = max(1, math.ceil((end - start) / _POINTS))
    found = {}
    for target in panel["targets"]:
        query = substituted(target["expr"], interval=f"{max(5, 4 * step)}s")
        if target["instant"]:
            path, more = "query", {"time": f"{end:.3f}"}
        else:
            path = "query_range"
            more = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": str(step)}
        parameters = urllib.parse.urlencode({"query": query, **more})
        try:
            with urllib.request.urlopen(f"{prometheus}/api/v1/{path}?{parameters}") as answer:
                found[target["refId"]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            text = error.read().decode()[:500]
            raise PreviewError(f"panel {panel['title']!r}: {query}: {text}") from None
    return found


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """*folder* over HTTP on loopback; icons are fetched, which a file may not."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what fails to load is in the browser's log."""

    handler = partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _browser() -> Chrome:
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in _FLAGS:
        options.add_argument(flag)
    return Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))


def _picture(browser: Chrome, page: str, out: Path, board: Mapping[str, Any]) -> None:
    """Draw the page at the address *page*, wait until every panel is there, and keep it."""
    browser.get(page)
    wanted = len(list(panels(board)))
    deadline = time.monotonic() + 60
    while (
        browser.execute_script("return document.querySelectorAll('[data-panel]').length") < wanted
    ):
        errors = browser.execute_script("return window.PREVIEW_ERRORS || []")
        if errors or time.monotonic() > deadline:
            raise PreviewError(f"{board['title']}: {'; '.join(errors) or 'panels are missing'}")
        time.sleep(0.1)
    # The window is higher than what it shows by its frame, and a picture ends where it does.
    browser.set_window_size(1624, browser.execute_script("return window.PREVIEW_HEIGHT") + 300)
    time.sleep(1.5)  # canvases are drawn a moment after their panels
    errors = browser.execute_script("return window.PREVIEW_ERRORS")
    errors += [
        one["message"]
        for one in browser.get_log("browser")
        if one["level"] == "SEVERE" and _FONTS not in one["message"]
    ]
    if errors:
        raise PreviewError(f"{board['title']}: {'; '.join(errors)}")
    browser.find_element("tag name", "main").screenshot(str(out))
