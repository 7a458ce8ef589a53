"""Every panel counts a rank once: with the exporter, with SGLang's own /metrics, and with both.

promtool evaluates the panels' queries over the series of conftest.py. Each choice of sources is a
cluster there, picked by its variable.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator

import pytest
from build import HERE
from queries import panels, substituted

SGLANG = "10.0.0.1:30000"
"""The scrape instance of the server that lives, for SGLang's own /metrics."""
RULES = HERE.parent / "deploy" / "prometheus" / "hicache-obs.rules.yml"
EXPORTER_ONLY = {
    "Failed starts": "only the exporter outlives a start that fails",
    "Failed starts by model": "as above",
    "Starts by outcome": "as above",
    "Exporters": "counts exporters",
    "Ranks that an exporter sees": "counts what exporters see",
    "Ranks without an exporter": "counts what they do not; tested below",
    "hicache-obs versions": "an exporter has a version of its own",
    "Memory limits beside host pools": "of a node's pods together only their exporter knows",
    "Journal lines": "the exporter's own",
    "Runs and directories": "the exporter's own",
}
"""Panels that are not the same without an exporter, with the reason."""
EMPTY_HERE = {
    "Ranks without an exporter": "every rank has one",
}
"""Panels that have nothing to show in the cluster "exporter", with the reason."""


def queries() -> Iterator[tuple[str, str, str]]:
    """Dashboard, title and query of every panel."""
    for path in sorted((HERE / "json").glob("*.json")):
        for panel in panels(json.loads(path.read_text())):
            for target in panel["targets"]:
                yield path.stem, panel["title"], target["expr"]


QUERIES = [pytest.param(title, expr, id=f"{board}: {title}") for board, title, expr in queries()]
each_query = pytest.mark.parametrize(("title", "expr"), QUERIES)


def of(cluster: str, expr: str, **variables: str) -> str:
    """*expr* of one *cluster*, with no trace of it in the labels."""
    text = substituted(expr, {"cluster": cluster, **variables}, interval="5m")
    return f"sum without (cluster, instance) ({text})"


def changed_by_a_second_source(expr: str) -> list[str]:
    """Queries that have a row where *expr* is not the same with one and with both sources."""
    one, both = of("exporter", expr), of("both", expr)
    return [f"{one} unless {both}", f"{both} unless {one}", f"{one} != {both}"]


def unlike_alone(expr: str) -> list[str]:
    """Queries that have a row where the number of rows or their sum depends on the source."""
    one, other = of("alone", expr), of("live", expr)
    return [
        f"count({one}) != count({other})",
        f"count({one}) unless count({other})",
        f"count({other}) unless count({one})",
        f"sum({one}) != sum({other})",
    ]


UNSEEN = next(expr for _, title, expr in queries() if title == "Ranks without an exporter")
COVERAGE = {
    of("both", UNSEEN): "",
    of("both", UNSEEN, instance=SGLANG): "",
    of("live", UNSEEN): "2",
    of("partly", UNSEEN): "2",
    of("without pods", UNSEEN): "",
}
"""Ranks that no exporter sees, by cluster: what the panel says. A server of the same model and port
on another node is seen by no exporter in "partly", though its ranks are named alike."""
FAULTS = next(expr for _, title, expr in queries() if title == "Own faults")
BY_RELEASE = [
    expr
    for _, title, expr in queries()
    if title in ("Failing servers", "Failing ranks by SGLang release")
]
NAMELESS = [
    f"sum({of('exporter', expr)}) != sum({of('nameless', expr)}) or absent({of('nameless', expr)})"
    for expr in BY_RELEASE
]
_TOLD = re.compile(r'expr: ("(?:[^"\\]|\\.)*"), time: \S+\s+exp:.*\n\s+got: (.*)')


@pytest.fixture(scope="module")
def rows(
    world: list[dict[str, str]],
    program: Callable[[str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], str]:
    """The rows of a query, as promtool writes them; "" for none. It runs once, for all."""
    asked = {*COVERAGE, *NAMELESS, of("untold", FAULTS)}
    for _, _, expr in queries():
        asked |= {of("exporter", expr), *changed_by_a_second_source(expr), *unlike_alone(expr)}
    test = {
        "interval": "1m",
        "input_series": world,
        # Expecting nothing makes promtool print what there is.
        "promql_expr_test": [
            {"expr": expr, "eval_time": "10m", "exp_samples": []} for expr in sorted(asked)
        ],
    }
    groups = ["hicache-obs.recording", "hicache-obs.alerts"]
    path = tmp_path_factory.mktemp("promtool") / "test.yml"
    path.write_text(
        json.dumps({"rule_files": [str(RULES)], "group_eval_order": groups, "tests": [test]})
    )
    command = [program("promtool", "prometheus"), "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {json.loads(expr): got for expr, got in _TOLD.findall(done.stdout + done.stderr)}
    assert found, done.stdout + done.stderr
    assert found.keys() <= asked

    def told(expr: str) -> str:
        assert expr in asked
        return found.get(expr, "")

    return told


@each_query
def test_the_world_has_something_to_show(rows: Callable[[str], str], title: str, expr: str) -> None:
    assert bool(rows(of("exporter", expr))) == (title not in EMPTY_HERE)


@each_query
def test_a_second_source_changes_nothing(rows: Callable[[str], str], title: str, expr: str) -> None:
    for query in changed_by_a_second_source(expr):
        assert not rows(query), query


@each_query
def test_sglangs_metrics_alone_say_the_same_of_a_server_that_lives(
    rows: Callable[[str], str], title: str, expr: str
) -> None:
    for query in unlike_alone(expr):
        assert title in EXPORTER_ONLY or not rows(query), query


@pytest.mark.parametrize(("query", "count"), COVERAGE.items())
def test_ranks_without_an_exporter(rows: Callable[[str], str], query: str, count: str) -> None:
    assert rows(query).removeprefix("{} ").split("E")[0] == count


@pytest.mark.parametrize("query", NAMELESS)
def test_a_failing_server_of_unknown_release_is_shown(
    rows: Callable[[str], str], query: str
) -> None:
    assert not rows(query)


def test_a_fault_that_the_journal_could_not_take_is_told(rows: Callable[[str], str]) -> None:
    assert re.findall(r'where="(\w+)"', rows(of("untold", FAULTS))) == ["journal", "sink"]
