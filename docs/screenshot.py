"""Makes docs/status-page.png from the snapshot that the tests look at.

python docs/screenshot.py

Needs Debian's chromium and chromium-driver.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("tests/unit", "dashboards")]

from preview.chromium import FLAGS  # noqa: E402 - found by the line above
from servers import NOW, a_night  # noqa: E402

from hicache_obs.exporter import page  # noqa: E402

WIDTH = 1200


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        # Shown two seconds after the exporter looked.
        text = page.render(a_night(), show_messages=True, now=NOW + 2)
        file.write_text(text, encoding="utf-8")
        options = ChromeOptions()
        options.binary_location = program("chromium")
        for flag in (*FLAGS, "--hide-scrollbars", f"--user-data-dir={folder}/data"):
            options.add_argument(flag)
        with Chrome(options=options, service=ChromeService(program("chromedriver"))) as chrome:
            resize(chrome, 100)
            chrome.get(file.as_uri())
            resize(chrome, chrome.execute_script("return document.body.offsetHeight"))
            chrome.save_screenshot(str(ROOT / "docs" / "status-page.png"))


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        sys.exit(f"{name} is not installed: apt-get install chromium chromium-driver")
    return found


def resize(chrome: Chrome, height: int) -> None:
    size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


if __name__ == "__main__":
    main()
