"""Check the dashboards' schema, and draw them from a Prometheus that watches the demonstration.

    make dashboards

Real Mooncake, SGLang 0.5.14, exporter and Prometheus: a server that died of the bug beside one that
stands. Ends with 1 if a panel fails, or is empty and should not be. The pictures go to
docs/dashboards/; they are previews, not Grafana.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / name) for name in ("tests/sglang", "tests/unit", "dashboards")]

from bench.demonstration import demonstration  # noqa: E402 - the bench is not installed
from bench.harness import cache_root  # noqa: E402
from bench.monitoring import missing  # noqa: E402
from preview.preview import PreviewError, check_schema, draw, empty, install  # noqa: E402

from hicache_obs.rules.render import rules  # noqa: E402

DASHBOARDS = sorted((ROOT / "dashboards" / "json").glob("*.json"))
WATCHED_S = 60
"""How long the two servers are watched before they are drawn."""


def main() -> int:
    modules = cache_root() / "preview"
    try:
        install(modules)
        problems = check_schema(modules, DASHBOARDS)
        if not problems:
            print("schema: the types of @grafana/schema take both dashboards")
            problems = drawn(modules)
    except (PreviewError, RuntimeError, TimeoutError, OSError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"make dashboards: {problem}", file=sys.stderr)
    return 1 if problems else 0


def drawn(modules: Path) -> list[str]:
    """Draw every dashboard; what is wrong with them, a line each."""
    lacking = missing()
    if lacking:
        return [f"not installed: on Debian, apt-get install {' '.join(lacking)}"]
    allowed = yaml.safe_load((ROOT / "dashboards" / "empty_in_demo.yaml").read_text())
    out = ROOT / "docs" / "dashboards"
    print("demonstration: one server dies of the bug, one stands (about 90 s) ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="hicache-obs-previews-") as folder:
        started = time.monotonic()
        with demonstration(Path(folder), ROOT / "deploy", rules()) as night:
            time.sleep(max(0.0, WATCHED_S - (time.monotonic() - started)))
            seconds = time.monotonic() - started + 5
            panels = draw(modules, night.shipped.url, DASHBOARDS, out, seconds)
    for panel in panels:
        note = f"empty: {allowed[panel.title]}" if panel.title in allowed else "EMPTY"
        print(f"{panel.dashboard:15} {panel.title:38} {panel.rows or note}")
    print(f"pictures: {', '.join(str(out / path.stem) + '.png' for path in DASHBOARDS)}")
    return empty(panels, allowed)


if __name__ == "__main__":
    sys.exit(main())
