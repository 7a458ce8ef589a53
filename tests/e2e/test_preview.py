"""The preview renderer on a Prometheus of canned answers: what it draws, and what it tells."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from preview.preview import PreviewError, draw, empty
from preview.prometheus import Asked

JSON = Path(__file__).resolve().parents[2] / "dashboards" / "json"
ROW = {"metric": {"server_port": "30000", "pool": "draft"}, "value": [0, "3"]}


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A Prometheus that has one series for every query, but refuses one that has ``refused`` in it
    and has nothing for one with ``nothing``: its URL, and the queries."""
    queries: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there = urlsplit(self.path)
            query = parse_qs(there.query)["query"][0]
            queries.append(query)
            self.send_response(400 if "refused" in query else 200)
            self.end_headers()
            row: dict[str, Any] = dict(ROW)
            if there.path.endswith("query_range"):
                end = float(parse_qs(there.query)["end"][0])
                del row["value"]
                row["values"] = [[end - ago, "3"] for ago in (20, 19, 18, 2, 1)]
            result = [] if "nothing" in query else [row]
            self.wfile.write(json.dumps({"data": {"result": result}}).encode())

        def log_message(self, *_: object) -> None:
            """Nothing: queries are kept."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", queries
        server.shutdown()


def board(*, table: str = "up", transformation: str = "organize") -> dict[str, Any]:
    """The fleet dashboard with one panel of each kind, its table's query *table*."""
    found: dict[str, Any] = json.loads((JSON / "hicache-fleet.json").read_text())
    kinds = {panel["type"]: panel for panel in found["panels"]}
    found["panels"] = list(kinds.values())
    kinds["table"]["targets"][0]["expr"] = table
    kinds["table"]["transformations"] = [{"id": transformation, "options": {}}]
    kinds["stat"]["targets"][0]["expr"] = "nothing"
    kinds["timeseries"]["targets"][0]["expr"] = 'rate(x{pool=~"$pool"}[$__rate_interval])'
    del kinds["timeseries"]["targets"][1:]
    return found


@pytest.mark.full
def test_each_panel_is_drawn_and_told(
    modules: Path, tmp_path: Path, asked: tuple[str, list[str]]
) -> None:
    url, queries = asked
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(board()))
    panels = {one.kind: one for one in draw(modules, url, [path], tmp_path, 60)}
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG")
    assert panels["timeseries"].rows == 5
    assert (panels["table"].frames, panels["table"].rows) == (1, 1)
    assert (panels["stat"].frames, panels["stat"].rows) == (0, 0)
    assert 'rate(x{pool=~".*"}[4s])' in queries
    title = panels["stat"].title
    assert len(empty(panels.values(), {})) == 1
    assert empty(panels.values(), {title: "a reason", panels["table"].title: "not empty"}) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "told"),
    [({"table": "refused"}, "refused"), ({"transformation": "magic"}, "no transformation magic")],
    ids=["a query", "a transformation"],
)
def test_a_panel_that_fails_is_named(
    modules: Path,
    tmp_path: Path,
    asked: tuple[str, list[str]],
    change: dict[str, str],
    told: str,
) -> None:
    dashboard = board(**change)
    title = next(panel["title"] for panel in dashboard["panels"] if panel["type"] == "table")
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(dashboard))
    with pytest.raises(PreviewError, match=told) as error:
        draw(modules, asked[0], [path], tmp_path, 60)
    [line] = str(error.value).splitlines()
    assert line.startswith(f"fleet: panel {title!r}: ")


def test_an_annotation_marks_the_times_at_which_it_holds(asked: tuple[str, list[str]]) -> None:
    now = time.time()
    dashboard = json.loads((JSON / "hicache-fleet.json").read_text())
    spans = list(Asked(asked[0], now - 60, now, 1).annotations(dashboard))
    assert [(one["since"] - now, one["until"] - now) for one in spans] == [
        (pytest.approx(-20, abs=0.01), pytest.approx(-18, abs=0.01)),
        (pytest.approx(-2, abs=0.01), pytest.approx(-1, abs=0.01)),
    ]


def test_a_prometheus_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"http://127\.0\.0\.1:9 does not answer"):
        Asked("http://127.0.0.1:9", 0, 60, 1).series("up", instant=True)
