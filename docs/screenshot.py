"""Makes docs/status-page.png from the snapshot that the tests look at.

python docs/screenshot.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

from servers import a_night  # noqa: E402 - found by the line above

from hicache_obs.exporter import page  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page.render(a_night(), show_messages=True), encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update"]
        flags += ["--disable-quic", "--hide-scrollbars", "--window-size=1100,1230"]
        target = ROOT / "docs" / "status-page.png"
        subprocess.run(
            [
                "chromium",
                *flags,
                f"--user-data-dir={folder}/data",
                f"--screenshot={target}",
                str(file),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )


if __name__ == "__main__":
    main()
