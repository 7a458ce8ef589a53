"""The committed dashboards: the dashboard-linter's rules, PromQL, metrics, links.

The rules are those of grafana/dashboard-linter by name, without exclusions but for those in
`EXCLUDED`.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from build import HERE
from components import PANELS
from components.promql import METRICS, RECORDED
from queries import panels, substituted

from hicache_obs.rules import RUNBOOKS, alerts

EXCLUDED = {
    "template-job-rule": "a rank has rows of two jobs, the exporter's and SGLang's, and is counted "
    "once only where a query sees both",
    "target-job-rule": "as above: jobs are told apart by the label host, which no scrape "
    "configuration renames",
}
"""Rules of the dashboard-linter that are not kept, with the reason."""

NO_INSTANCE = RECORDED | {"ALERTS"}
"""What is summed over instances has none."""
EVERY_INSTANCE = {
    "Ranks without an exporter": "choosing the instance of a server must not hide its exporter",
}
"""Panels with a query that no chosen instance narrows, with the reason (target-instance-rule)."""

FILES = sorted((HERE / "json").glob("*.json"))
BOARDS = {path.stem: json.loads(path.read_text()) for path in FILES}
PANEL_LIST = [
    pytest.param(board, panel, id=f"{board['uid']}: {panel['title']}")
    for board in BOARDS.values()
    for panel in panels(board)
]
EXPRESSIONS = [
    pytest.param(board, target["expr"], id=f"{board['uid']}: {name} {target['refId']}")
    for board in BOARDS.values()
    for name, target in (
        *((p["title"], t) for p in panels(board) for t in p.get("targets", ())),
        *((a["name"], a["target"]) for a in board["annotations"]["list"] if "target" in a),
    )
]
UNITS = {"short", "bytes", "s", "dateTimeAsIso"}
SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
each_panel = pytest.mark.parametrize(("board", "panel"), PANEL_LIST)
each_expression = pytest.mark.parametrize(("board", "expr"), EXPRESSIONS)


def variables(board: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {v["name"]: v for v in board["templating"]["list"] if v["type"] == kind}


@each_board
def test_uneditable_schema_and_uid(board: dict[str, Any]) -> None:
    assert board["editable"] is False
    assert board["schemaVersion"] == 42
    assert board["id"] is None
    assert board["uid"] in BOARDS
    assert board["title"].startswith("HiCache / ")


@each_board
def test_template_datasource(board: dict[str, Any]) -> None:
    assert list(variables(board, "datasource")) == ["datasource"]
    assert variables(board, "datasource")["datasource"]["query"] == "prometheus"


@each_board
def test_template_instance_and_the_other_variables(board: dict[str, Any]) -> None:
    wanted = ["cluster", "namespace", "model_name", "instance"]
    if board["uid"] == "hicache-server":
        wanted += ["server_port", "tp_rank"]
    found = variables(board, "query")
    assert list(found) == wanted
    for variable in found.values():
        assert (variable["multi"], variable["includeAll"]) == (True, True)
        assert (variable["allValue"], variable["current"]["value"]) == (".*", ["$__all"])
        assert variable["datasource"]["uid"] == "${datasource}"
        assert variable["refresh"] == 2, "template-on-time-change-reload"
        assert variable["label"]


@each_board
def test_template_label_promql(board: dict[str, Any], promtool: str, tmp_path: Path) -> None:
    found = []
    for variable in variables(board, "query").values():
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert match[2] == variable["name"]
        found.append(match[1])
    check(promtool, tmp_path, found)


def check(promtool: str, folder: Path, expressions: list[str]) -> None:
    """Every expression is PromQL of the installed Prometheus."""
    rules = [
        {"record": f"d:e{number}", "expr": substituted(expression)}
        for number, expression in enumerate(expressions)
    ]
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "d", "rules": rules}]}))
    command = [promtool, "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each_board
def test_target_promql(board: dict[str, Any], promtool: str, tmp_path: Path) -> None:
    check(promtool, tmp_path, [p.values[1] for p in EXPRESSIONS if p.values[0] is board])


@each_panel
def test_panel_title_description_units_datasource_and_targets(
    board: dict[str, Any], panel: dict[str, Any]
) -> None:
    assert panel["type"] in PANELS
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["targets"], "panel-no-targets"
    assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS
    assert defaults["noValue"], "an empty panel says what it means"
    values = [step["value"] for step in defaults["thresholds"]["steps"]]
    assert values[0] is None
    assert values[1:] == sorted(values[1:])


def test_titles_are_said_once_in_a_dashboard() -> None:
    for board in BOARDS.values():
        titles = [panel["title"] for panel in panels(board)]
        assert sorted(titles) == sorted(set(titles))


@each_panel
def test_panels_do_not_overlap(board: dict[str, Any], panel: dict[str, Any]) -> None:
    def cells(one: dict[str, Any]) -> set[tuple[int, int]]:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
        return {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }

    for other in board["panels"]:
        assert other["id"] == panel["id"] or not cells(other) & cells(panel)


@each_expression
def test_target_rate_interval(board: dict[str, Any], expr: str) -> None:
    assert re.findall(r"\[([^\]]*)\]", expr.replace("[$__rate_interval]", "")) == []
    assert "offset" not in expr
    assert "{{" not in expr


@each_expression
def test_target_cluster(board: dict[str, Any], expr: str) -> None:
    selectors = SELECTOR.findall(expr)
    assert selectors
    for metric, matchers in selectors:
        assert 'cluster=~"$cluster"' in matchers, metric


@each_panel
def test_target_instance(board: dict[str, Any], panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        narrowed = [
            'instance=~"$instance"' in matchers
            for metric, matchers in SELECTOR.findall(target["expr"])
            if metric not in NO_INSTANCE
        ]
        assert all(narrowed) == (panel["title"] not in EVERY_INSTANCE)
        assert any(narrowed) or not narrowed


@each_expression
def test_every_variable_is_one_of_the_dashboard(board: dict[str, Any], expr: str) -> None:
    known = set(variables(board, "query")) | {"__rate_interval"}
    assert set(re.findall(r"\$\{?([a-z_]+)", expr)) <= known


CUMULATIVE = {
    *("Failed registrations", "Store set-ups", "Allocations", "Page-locking calls"),
    *("Allocator fallbacks", "Failed starts", "Starts by outcome"),
    *("Own faults", "Faults and lost events"),
}
"""Panels that show a counter's count, not its growth: a start makes a handful of these calls,
and it is the few that count, not how many a second. Their counters are born at 1."""


@each_panel
def test_target_counter_agg(board: dict[str, Any], panel: dict[str, Any]) -> None:
    for target in panel.get("targets", ()):
        for metric, _ in SELECTOR.findall(target["expr"]):
            grown = re.search(rf"(rate|increase)\({metric}\{{", target["expr"])
            assert not metric.endswith("_total") or grown or panel["title"] in CUMULATIVE


def used(expressions: list[str]) -> set[str]:
    return {metric for expr in expressions for metric, _ in SELECTOR.findall(expr)}


def test_every_metric_is_used_or_said_not_to_be() -> None:
    found = used([p.values[1] for p in EXPRESSIONS])
    assert found <= METRICS | RECORDED | {"ALERTS"}
    unused = yaml.safe_load((HERE / "unused.yaml").read_text())
    assert METRICS - found == set(unused)
    assert all(unused.values())
    in_rules = {"server:hicache_worker_starts_failed:max"}
    assert RECORDED - found <= in_rules


def test_info_gauges_are_asked_for_their_one() -> None:
    """A row of the live path that ended is written 0."""
    for parameter in EXPRESSIONS:
        for metric, _ in SELECTOR.findall(parameter.values[1]):
            if metric.endswith("_info"):
                assert "== 1" in parameter.values[1], parameter.id


def urls(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [v for k, v in value.items() if k == "url" and isinstance(v, str)]
        return own + [url for v in value.values() for url in urls(v)]
    return [url for one in value for url in urls(one)] if isinstance(value, list) else []


def test_links_lead_somewhere() -> None:
    found = {url for board in BOARDS.values() for url in urls(board)}
    boards = {match[1] for url in found if (match := re.match(r"/d/([\w-]+)", url))}
    assert boards == set(BOARDS)
    passed = {name for url in found for name in re.findall(r"[?&]var-(\w+)=", url)}
    passed |= {name for url in found for name in re.findall(r"\$\{(\w+):queryparam\}", url)}
    server = BOARDS["hicache-server"]
    assert passed <= {"datasource", *variables(server, "query")}
    runbooks = {url for url in found if url.startswith(RUNBOOKS)}
    assert runbooks == {
        f"{RUNBOOKS}/README.md",
        f"{RUNBOOKS}/${{__value.text}}.md#${{__data.fields.Cause}}",
    }
    rest = found - runbooks - {url for url in found if url.startswith("/d/")}
    assert rest == {"/alerting/list?search=HiCache"}


@each_panel
def test_tables_show_texts_as_they_stand(board: dict[str, Any], panel: dict[str, Any]) -> None:
    """Grafana makes 32.0 K of the port 31999 where the panel's unit is a number's, in links too,
    and says in an empty cell what is meant for an empty panel."""
    if panel["type"] == "table":
        assert panel["fieldConfig"]["defaults"]["mappings"] == []
        assert panel["fieldConfig"]["overrides"][0] == {
            "matcher": {"id": "byType", "options": "string"},
            "properties": [
                {"id": "unit", "value": "string"},
                {"id": "noValue", "value": ""},
            ],
        }


@each_panel
def test_a_bar_that_is_alone_has_a_name(board: dict[str, Any], panel: dict[str, Any]) -> None:
    """Grafana names one bar by `displayName` only, and several by their legends too."""
    if panel["type"] != "bargauge":
        return
    assert panel["fieldConfig"]["defaults"]["min"] == 0
    legends = [target["legendFormat"] for target in panel["targets"]]
    if len(legends) == 1:
        name = re.sub(r"\{\{(\w+)\}\}", r"${__field.labels.\1}", legends[0])
        assert panel["fieldConfig"]["defaults"]["displayName"] == name


@each_panel
def test_tables_ask_for_their_columns(board: dict[str, Any], panel: dict[str, Any]) -> None:
    if panel["type"] == "table":
        exprs = " ".join(target["expr"] for target in panel["targets"])
        lists = re.findall(r"\b(?:by|group_left) ?\(([^)]*)\)", exprs)
        labels = {label.strip() for one in lists for label in one.split(",")}
        columns = panel["transformations"][0]["options"]["include"]["names"]
        assert set(columns) <= {*labels, "Value"}


def test_alerts_link_to_dashboards_that_exist() -> None:
    assert {alert.dashboard for alert in alerts()} == set(BOARDS)


def test_excluded_rules_have_reasons() -> None:
    assert all(EXCLUDED.values())
