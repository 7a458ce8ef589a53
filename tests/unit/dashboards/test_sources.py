"""The sources: they make what is committed, and a mistake in one names its file and key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from build import HERE, SOURCES, build, main
from components import SourceError

FLEET = (HERE / "sources" / "fleet.yaml").read_text()


def test_the_committed_files_are_what_the_sources_make(tmp_path: Path) -> None:
    build(SOURCES, tmp_path)
    made = {path.name: path.read_bytes() for path in (tmp_path / "json").iterdir()}
    assert made == {path.name: path.read_bytes() for path in (HERE / "json").glob("*.json")}
    assert sorted(made) == ["hicache-fleet.json", "hicache-server.json"]


def test_check_names_a_file_that_is_stale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"]) == 0
    other = tmp_path / "fleet.yaml"
    other.write_text(FLEET.replace("Failing ranks", "Ranks"))
    monkeypatch.setattr("build.SOURCES", (other, HERE / "sources" / "server.yaml"))
    assert main(["--check"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["--what"]) == 2


@pytest.fixture
def built(tmp_path: Path) -> Callable[[str], str]:
    """What the build says of a source that cannot be built."""

    def build_it(text: str) -> str:
        path = tmp_path / "broken.yaml"
        path.write_text(text)
        with pytest.raises(SourceError) as caught:
            build((path,), tmp_path / "out")
        return str(caught.value)

    return build_it


EMPTY = "empty: no rank is failing"
QUERY = 'expr: "count(group by (RANK_LABELS)'
FIRST = "        - stat-panel:\n            title: Failing ranks\n"
DESCRIPTION = next(
    line.strip() for line in FLEET.splitlines() if "description: Ranks whose" in line
)
COLUMNS = "columns: {cluster: Cluster, namespace: Namespace, model_name: Model, target"
UP = "SERIES(model:hicache_worker_up:sum)"
BROKEN = {
    "unknown key of a dashboard": (
        "    uid: hicache-fleet",
        "    colour: red\n    uid: hicache-fleet",
        "hicache-dashboard: unknown key 'colour'",
    ),
    "unknown key of a panel": (
        EMPTY,
        f"{EMPTY}\n            colour: red",
        "'Failing ranks': unknown key 'colour'",
    ),
    "unknown key of a query": (QUERY, f"format: x, {QUERY}", "unknown key 'format'"),
    "unknown panel": ("- stat-panel:", "- pie-panel:", "pie-panel"),
    "a panel of the library, for Angular": (
        FIRST,
        f"        - single-stat: {{title: x}}\n{FIRST}",
        "singlestat",
    ),
    "unknown variable": ("- datasource-variable:", "- colour-variable:", "colour-variable"),
    "unknown kind of component": ("  hicache-dashboard:", "  board:", "unknown component board"),
    "unknown macro": (UP, UP.replace("SERIES", "SERIE"), "'Live ranks': unknown macro 'SERIE'"),
    "unknown metric": (UP, UP.replace("up", "down"), "unknown metric 'model:hicache_worker_down"),
    "a macro of nothing": (UP, "SERIES()", "'SERIES()' is no macro(metric, matchers)"),
    "no title": ("title: Failing ranks\n", "title:\n", "key 'title' is missing or empty"),
    "no description": (DESCRIPTION, "", "key 'description' is missing"),
    "no unit": (f"unit: short\n            {EMPTY}", EMPTY, "key 'unit' is missing"),
    "no words for nothing": (EMPTY, "", "key 'empty' is missing"),
    "no columns": (COLUMNS, "units: {model_name: Model, target", "key 'columns' is missing"),
    "a link of no column": ("alert: {title: Run", "alarm: {title: Run", "no column 'alarm'"),
    "a link to no column": ("fields.Port}", "fields.Harbour}", "there is no column 'Harbour'"),
    "a threshold that is no number": ("{1: red}", "{one: red}", "threshold 'one': 'red' is no"),
    "thresholds of another shape": ("{1: red}", "[1, red]", "'thresholds' is [1, 'red'], which"),
    "a key of another kind of panel": (EMPTY, f"{EMPTY}\n            stack: true", "key 'stack'"),
    "a width that is no number": ("w: 6", "w: wide", "key 'w' is 'wide', which is no int"),
    "queries that are no list": (
        f'[{{expr: "sum({UP})"}}]',
        "5",
        "'queries' is 5, which is no list",
    ),
    "a component that is a text": (FIRST, f"        - single-stat\n{FIRST}", "is no component"),
    "a component without a name": ("- name: hicache-fleet\n  hic", "- hic", "'name' is missing"),
    "an unknown key of a project": ("dashboards: [", "folder: x\n    dashboards: [", "'folder'"),
    "no list of components": (FLEET, "hicache-project:", "a list of components is wanted"),
    "an unknown variable in a query": (
        UP,
        UP.replace(")", ", pod=~'$place')"),
        "unknown variable 'place'",
    ),
    "an unknown variable in a link": ("${namespace:q", "${place:q", "unknown variable 'place'"),
    "a metric without a macro": (f"sum({UP})", "sum(hicache_worker_up)", "stands without a macro"),
    "a sum that is counted once": (UP, UP.replace("SERIES", "ONCE"), "no metric of a rank"),
    "an alert of no failure": ("ALERTED(hicache_failure_active", "ALERTED(hicache_worker_up", "no"),
    "unknown labels": ("by (SERVER_LABELS, inst", "by (SERVICE_LABELS, inst", "'SERVICE_LABELS'"),
    "a row without panels": (
        f"        panels:\n{FIRST}",
        f"        widgets:\n{FIRST}",
        "unknown key 'widgets'",
    ),
    "no YAML": ("    rows:\n", "    rows: [\n", "line"),
}


@pytest.mark.parametrize(("old", "new", "told"), BROKEN.values(), ids=BROKEN)
def test_a_broken_source_names_file_and_key(
    built: Callable[[str], str], old: str, new: str, told: str
) -> None:
    assert old in FLEET
    text = built(FLEET.replace(old, new, 1))
    assert text.startswith("broken.yaml: ")
    assert told in text
    assert "\n" not in text
