"""The parts of the documentation that the code knows, made from it.

python docs/tables.py            rewrite them in README.md, in docs/ and in docs/runbooks/
python docs/tables.py --check    fail if they are not what the code says

A part stands between ``<!-- table: NAME -->`` (or ``NAME ARGUMENT``) and ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from hicache_obs import durations
from hicache_obs.causes import CAUSES
from hicache_obs.config import SETTINGS
from hicache_obs.metrics import EXPORTER_METRICS as OWN
from hicache_obs.metrics import METRICS, WORKER_LABELS
from hicache_obs.rules.alert import CRITICAL
from hicache_obs.rules.of_failure import by_name
from hicache_obs.rules.thresholds import Thresholds
from hicache_obs.sglang_targets import RELEASES, targets_for

DOCS = Path(__file__).resolve().parent
sys.path.append(str(DOCS))

import hook_tables  # noqa: E402 - found by the line above
import kind_tables  # noqa: E402
from hook_tables import table as _table  # noqa: E402

RUNBOOKS = DOCS / "runbooks"
FILES = (
    *(DOCS.parent / "README.md", DOCS / "alerts.md", DOCS / "hooks.md", DOCS / "diagnosis.md"),
    *sorted(RUNBOOKS.glob("*.md")),
)

_ROWS_STAND = ("hicache_failure_active", "hicache_allocator_mismatch")
"""What stays after the death of a worker, until something newer supersedes it."""


def settings() -> str:
    rows = [f"| `{s.variable}` | `{s.default}` | {s.meaning} |" for s in SETTINGS]
    rows = [row.replace("| `` |", "| |") for row in rows]
    return _table("| variable | default | meaning |", rows)


def causes() -> str:
    rows = [f"| `{c.name}` | {c.meaning} | {c.action} |" for c in CAUSES.values()]
    return _table("| cause | what it means | what to do first |", rows)


def metrics() -> str:
    rows = [
        f"| `{m.name}` | {m.type} | {', '.join(m.labels)} | {m.help} |"
        for m in sorted(METRICS, key=lambda m: (m.name.startswith("hicache_obs"), m.name))
    ]
    return _table("| metric | type | labels beside the worker's | meaning |", rows)


def exporter_metrics() -> str:
    rows = [f"| `{m.name}` | {m.type} | {', '.join(m.labels)} | {m.help} |" for m in OWN]
    return _table("| metric | type | labels | meaning |", rows)


def worker_labels() -> str:
    return ", ".join(f"`{label}`" for label in WORKER_LABELS)


def releases() -> str:
    rows = [f"| {release} | {len(targets_for(release))} |" for release in RELEASES]
    return _table("| SGLang | hook points |", rows)


def alerts() -> str:
    """Every alert, with links for a page beside the runbooks."""
    rows = [
        f"| [{a.name}]({a.name}.md) | {a.severity} "
        f"| {durations.text(a.wait) if a.wait else 'at once'} "
        f"| {_first_sentence(RUNBOOKS / f'{a.name}.md')} | {a.traffic} |"
        for a in by_name().values()
    ]
    return _table("| alert | severity | after | what it says | is traffic affected now? |", rows)


def _first_sentence(path: Path) -> str:
    """Of the section Meaning: what the alert says, in words."""
    text = path.read_text(encoding="utf-8").partition("## Meaning\n")[2]
    text = re.sub(r"<!-- table: .*?<!-- end -->", "", text, flags=re.DOTALL)
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


def thresholds() -> str:
    rows = []
    for each in fields(Thresholds):
        show = durations.text if each.metadata["unit"] == "s" else "{:g}".format
        low, high = (show(value) for value in each.metadata["range"])
        meaning = each.metadata["meaning"]
        rows.append(f"| `{each.name}` | {show(each.default)} | {low} to {high} | {meaning} |")
    return _table("| threshold | default | allowed | meaning |", rows)


def where() -> str:
    """How to run a command; the same on every page, so that each page is enough."""
    return """\
`hicache-obs` runs in the **exporter's container**: it has the journals of all servers of its host.
In Kubernetes take the exporter's pod on the node of an affected server (or, as a sidecar, the
server's own pod, with `-c` and the name of the exporter's container):

```console
$ kubectl -n NAMESPACE exec EXPORTER_POD -- hicache-obs status
```

`hicache-obs doctor` looks at the installed SGLang, which only the **worker's container** has:
`kubectl -n NAMESPACE exec SGLANG_POD -- hicache-obs doctor`, or the same in a container of its
image if it does not stay up. Without Kubernetes run both on the host, as a user who may read
`/var/lib/hicache-obs`. `dmesg` is always read on the host: there, or with
`kubectl debug node/NODE -it --image=busybox -- dmesg`."""


# Parts of a runbook; each takes the name of its alert


def first_lines(name: str) -> str:
    alert = by_name()[name]
    lines = (
        ("Is traffic affected now?", alert.traffic),
        ("Do first:", alert.first),
        ("It worked when:", alert.worked),
    )
    return "\n".join(f"- **{title}** {text}" for title, text in lines)


def facts(name: str) -> str:
    alert = by_name()[name]
    told = "critical: it pages" if alert.severity == CRITICAL else "warning: it makes a ticket"
    wait = (
        f"when that has lasted {durations.text(alert.wait)}"
        if alert.wait
        else "as soon as that is so"
    )
    return f"Severity {told}. It fires {wait}."


def cause(name: str) -> str:
    """The words of ``hicache-obs explain`` for a cause."""
    return f"**Means:** {CAUSES[name].meaning}.\n\n**Do:** {CAUSES[name].action}."


def resolves(name: str) -> str:
    alert = by_name()[name]
    keep = ""
    if alert.keep:
        keep = f" {durations.text(alert.keep)} after that (a scrape gap must not resolve it)"
    if any(metric in alert.expr for metric in _ROWS_STAND):
        return _of_a_start(keep)
    return f"By itself, when what it says is no longer so; it goes away{keep or ' at once'}."


def _of_a_start(keep: str) -> str:
    return f"""\
By itself: its row goes when a newer start of the same server (host and port) gets past HiCache
start-up, whatever its ranks and pools, and the alert resolves{keep}.
A server that does not come back keeps its row until 24 h are over (`--retention.failed-run` of the
exporter) or until it is forgotten:

```console
$ kubectl -n NAMESPACE exec EXPORTER_POD -- hicache-obs forget HOST:PORT
```

**A pod that is gone** pages no longer once nothing was started in it for 15 min
(`--retention.failed-pod`), if the worker was told `POD_NAME`: without host network its successor is
another server. `hicache-obs status` goes on telling what happened to it. A server that comes back
on another port, or without HiCache, is forgotten by hand."""


TABLES: dict[str, Callable[[], str]] = {
    "causes": causes,
    "settings": settings,
    "metrics": metrics,
    "exporter-metrics": exporter_metrics,
    "worker-labels": worker_labels,
    "releases": releases,
    "alerts": alerts,
    "thresholds": thresholds,
    "where": where,
    **hook_tables.TABLES,
    **kind_tables.TABLES,
}
BLOCKS: dict[str, Callable[[str], str]] = {
    "first-lines": first_lines,
    "facts": facts,
    "cause": cause,
    "resolves": resolves,
}
"""Parts that are made for an alert or a cause."""


def rendered(text: str) -> str:
    """*text* with every part made anew.

    Raises:
        KeyError: the marker of a part names what does not exist.
    """

    def block(match: re.Match[str]) -> str:
        name, argument = match[1], match[2]
        made = BLOCKS[name](argument) if argument else TABLES[name]()
        marker = f"{name} {argument}" if argument else name
        return f"<!-- table: {marker} -->\n{made}\n<!-- end -->"

    marker = r"<!-- table: ([\w-]+)(?: (\w+))? -->\n.*?\n?<!-- end -->"
    return re.sub(marker, block, text, flags=re.DOTALL)


def main() -> int:
    old = {path: path.read_text(encoding="utf-8") for path in FILES}
    new = {path: rendered(text) for path, text in old.items()}
    stale = [path for path in FILES if new[path] != old[path]]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(DOCS.parent)} is not what the code says")
        return int(bool(stale))
    for path in stale:
        path.write_text(new[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
