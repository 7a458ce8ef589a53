"""Headless Chromium on a folder that is served on loopback."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

_FONTS = "/public/fonts/"
"""Grafana's fonts are not on npm; the system's are used."""
_DRAWN_WITHIN_S = 60
_FRAME_PX = 300
"""More than a window is higher than what it shows."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Of a Chromium that asks nothing of the network."""
_PICTURE = ("--force-device-scale-factor=1", "--hide-scrollbars", "--window-size=1700,1200")


class BrowserError(RuntimeError):
    """Chromium does not start, or the page does not get ready."""


class Browser:
    """Chromium, showing pages of a folder."""

    def __init__(self, driver: Chrome, address: str) -> None:
        self._driver = driver
        self._address = address

    def picture(self, page: str, out: Path) -> dict[str, Any]:
        """Keep *page* as a PNG in *out*; what the page reports of itself.

        Raises:
            BrowserError: the page does not report within a minute.
        """
        self._driver.get(f"{self._address}/{page}")
        report = self._report()
        self._driver.set_window_size(1700, report["height"] + _FRAME_PX)
        report = self._report()
        report["errors"] += [
            one["message"]
            for one in self._driver.get_log("browser")
            if one["level"] == "SEVERE" and _FONTS not in one["message"]
        ]
        self._driver.find_element("tag name", "main").screenshot(str(out))
        return report

    def _report(self) -> dict[str, Any]:
        deadline = time.monotonic() + _DRAWN_WITHIN_S
        while time.monotonic() < deadline:
            report: dict[str, Any] | None = self._driver.execute_script(
                "return window.previewReport ? window.previewReport() : null"
            )
            if report:
                return report
            time.sleep(0.1)
        said = "; ".join(one["message"] for one in self._driver.get_log("browser"))
        raise BrowserError(f"the page is not ready after {_DRAWN_WITHIN_S} s: {said}")


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser on *folder*."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, *_PICTURE):
        options.add_argument(flag)
    with _served(folder) as address:
        try:
            driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
        except WebDriverException as error:
            raise BrowserError(f"chromium does not start: {error.msg}") from None
        driver.set_page_load_timeout(_DRAWN_WITHIN_S)
        try:
            yield Browser(driver, address)
        except WebDriverException as error:
            raise BrowserError(f"chromium: {error.msg}") from None
        finally:
            driver.quit()


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """*folder* over HTTP: a page may not fetch its icons from files."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what fails to load is in the browser's log."""

    handler = partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
