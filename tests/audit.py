"""Look for known vulnerabilities in what ``pip install 'hicache-obs[otel]'`` brings.

Asks pip what it would install, and pip-audit what PyPI knows of each. Ends with 1 if there is a
known vulnerability, or a package of which nothing could be learned: no answer is no clean bill.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]


def pinned() -> list[str]:
    """What pip would install beside hicache-obs itself, as ``name==version``."""
    asked = [*PIP, "--dry-run", "--ignore-installed", "--report", "-", f"{ROOT}[otel]"]
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True)
    brought = (item["metadata"] for item in json.loads(done.stdout)["install"])
    return sorted(f"{m['name']}=={m['version']}" for m in brought if m["name"] != "hicache-obs")


def main() -> int:
    pins = pinned()
    print(f"audit: {len(pins)} packages: {', '.join(pins)}", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        audit = ["-m", "pip_audit", "--strict", "--no-deps", "--disable-pip", "-r", file.name]
        return subprocess.run([sys.executable, *audit], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
