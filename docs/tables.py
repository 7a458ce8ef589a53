"""The tables of the README, made from the code that they describe.

python docs/tables.py            rewrite them in README.md
python docs/tables.py --check    fail if they are not what the code says
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hicache_obs.causes import CAUSES
from hicache_obs.config import SETTINGS
from hicache_obs.metrics import EXPORTER_METRICS as OWN
from hicache_obs.metrics import METRICS, WORKER_LABELS
from hicache_obs.sglang_targets import RELEASES, targets_for

README = Path(__file__).resolve().parents[1] / "README.md"


def settings() -> str:
    rows = [f"| `{s.variable}` | `{s.default}` | {s.meaning} |" for s in SETTINGS]
    rows = [row.replace("| `` |", "| |") for row in rows]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def causes() -> str:
    rows = [f"| `{c.name}` | {c.meaning} | {c.action} |" for c in CAUSES.values()]
    return "\n".join(["| cause | what it means | what to do first |", "|---|---|---|", *rows])


def metrics() -> str:
    rows = [
        f"| `{m.name}` | {m.type} | {', '.join(m.labels)} | {m.help} |"
        for m in sorted(METRICS, key=lambda m: (m.name.startswith("hicache_obs"), m.name))
    ]
    head = ["| metric | type | labels beside the worker's | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def exporter_metrics() -> str:
    rows = [f"| `{m.name}` | {m.type} | {', '.join(m.labels)} | {m.help} |" for m in OWN]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def worker_labels() -> str:
    return ", ".join(f"`{label}`" for label in WORKER_LABELS)


def releases() -> str:
    rows = [f"| {release} | {len(targets_for(release))} |" for release in RELEASES]
    return "\n".join(["| SGLang | hook points |", "|---|---|", *rows])


TABLES = {
    "causes": causes,
    "settings": settings,
    "metrics": metrics,
    "exporter-metrics": exporter_metrics,
    "worker-labels": worker_labels,
    "releases": releases,
}


def rendered(text: str) -> str:
    """*text* with every ``<!-- table: NAME -->`` block made anew.

    Raises:
        KeyError: a block names a table that does not exist.
    """

    def block(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- table: {name} -->\n{TABLES[name]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->\n.*?\n?<!-- end -->", block, text, flags=re.DOTALL)


def main() -> int:
    old = README.read_text(encoding="utf-8")
    new = rendered(old)
    if "--check" in sys.argv:
        return int(new != old)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
