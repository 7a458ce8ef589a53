"""A dashboard, and the project that a source is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grafana_dashboards.components.annotations import Annotations, AnnotationsItemBase
from grafana_dashboards.components.dashboards import Dashboard
from grafana_dashboards.components.links import Links, LinksItemBase
from grafana_dashboards.components.projects import Project
from grafana_dashboards.components.rows import Rows
from grafana_dashboards.components.templates import Templates

from components.panels import PANELS
from components.promql import check_variables, expand
from components.source import DATASOURCE, SourceError, address, checked, components

SCHEMA_VERSION = 42
_PARTS = {"templates": Templates, "annotations": Annotations, "links": Links, "rows": Rows}
_IN_LINKS = ("datasource", "__value", "__data", "__url_time_range")
"""What a link may use beside the dashboard's variables."""
_COLUMNS = 24
_BUILT_IN = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}


class QueryAnnotation(AnnotationsItemBase):  # type: ignore[misc]  # the library is untyped
    """``query-annotation:`` a mark in every graph where a query has a row."""

    def gen_json_from_data(self, data: Any, context: Any) -> dict[str, Any]:
        keys = ("name", "expr", "colour", "title", "tags")
        checked("query-annotation", data, dict.fromkeys(keys, str))
        return {
            "name": data["name"],
            "datasource": DATASOURCE,
            "enable": True,
            "hide": False,
            "iconColor": data["colour"],
            "titleFormat": data["title"],
            "textFormat": "",
            "tagKeys": data["tags"],
            "useValueForTime": False,
            "target": {"refId": "Anno", "expr": data["expr"], "interval": "", "legendFormat": ""},
        }


class PageLink(LinksItemBase):  # type: ignore[misc]  # the library is untyped
    """``page-link:`` a link of the dashboard; ``variables`` takes the chosen values along."""

    def gen_json_from_data(self, data: Any, context: Any) -> dict[str, Any]:
        keys = ("title", "url", "tooltip")
        checked("page-link", data, dict.fromkeys(keys, str), {"variables": bool})
        return {
            "type": "link",
            "title": data["title"],
            "url": address(data["url"]),
            "tooltip": data["tooltip"],
            "icon": "external link",
            "tags": [],
            "asDropdown": False,
            "includeVars": bool(data.get("variables")),
            "keepTime": bool(data.get("variables")),
            "targetBlank": False,
        }


class HicacheDashboard(Dashboard):  # type: ignore[misc]  # the library is untyped
    """``hicache-dashboard:`` rows of panels, laid out from left to right."""

    def gen_json(self, context: Any) -> dict[str, Any]:
        """Text stands for itself, so the library's placeholders are not looked for."""
        return self.gen_json_from_data(self.data, context)

    def gen_json_from_data(self, data: Any, context: Any) -> dict[str, Any]:
        _check(data)
        made = {
            name: self.registry.create_component(kind, data).gen_json()
            for name, kind in _PARTS.items()
        }
        variables = [one["name"] for one in made["templates"] if one["type"] == "query"]
        panels = list(_laid_out(made["rows"]))
        for what, part in (*_parts(panels), *_parts(made["annotations"])):
            try:
                if "expr" in part:
                    part["expr"] = expand(part["expr"], variables)
                else:
                    check_variables(part["url"], (*variables, *_IN_LINKS))
            except SourceError as error:
                raise SourceError(f"{what}: {error}") from error
        return {
            "id": None,
            "uid": data["uid"],
            "title": data["title"],
            "description": data["description"],
            "tags": ["hicache-obs"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "timezone": "browser",
            "time": data["time"],
            "timepicker": {},
            "refresh": "30s",
            "fiscalYearStartMonth": 0,
            "weekStart": "",
            "liveNow": False,
            "preload": False,
            "links": made["links"],
            "annotations": {"list": [_BUILT_IN, *made["annotations"]]},
            "templating": {"list": made["templates"]},
            "panels": panels,
        }


def _check(data: Any) -> None:
    """The keys of a dashboard and of its rows; the components check their own."""
    what = "hicache-dashboard"
    texts = dict.fromkeys(("title", "uid", "description"), str)
    checked(what, data, {**texts, "time": dict, **dict.fromkeys(_PARTS, list)})
    checked(f"time of {what}", data["time"], {"from": str, "to": str})
    for part in _PARTS:
        components(f"{part} of {what}", data[part])
    for number, row in enumerate(data["rows"], 1):
        inside = checked(f"row {number}", row, {"row": dict})["row"]
        checked(f"row {number}", inside, {"title": str, "panels": list})
        components(f"row {inside['title']!r}", inside["panels"])


def _parts(things: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The queries and data links of panels or annotations, with the name of each owner."""
    for one in things:
        what = f"panel {one['title']!r}" if "title" in one else f"annotation {one['name']!r}"
        targets = one.get("targets", [one["target"]] if "target" in one else [])
        yield from ((what, target) for target in targets)
        for override in one.get("fieldConfig", {}).get("overrides", ()):
            for setting in override["properties"]:
                links = setting["value"] if setting["id"] == "links" else ()
                yield from ((what, link) for link in links)


def _laid_out(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The panels of *rows* with their places and numbers, a heading before each row."""
    number = top = 0
    for row in rows:
        number += 1
        yield {
            "type": "row",
            "id": number,
            "title": row["title"],
            "collapsed": False,
            "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
            "panels": [],
        }
        top, left, height = top + 1, 0, 0
        for panel in row["panels"]:
            if panel.get("type") not in PANELS:
                raise SourceError(f"row {row['title']!r}: panel of kind {panel.get('type')!r}")
            place = panel["gridPos"]
            if left + place["w"] > _COLUMNS:
                top, left, height = top + height, 0, 0
            place |= {"x": left, "y": top}
            left, height = left + place["w"], max(height, place["h"])
            number += 1
            yield panel | {"id": number}
        top += height


class HicacheProject(Project):  # type: ignore[misc]  # the library is untyped
    """``hicache-project:`` the dashboards of a source; its name is the folder they go to."""

    def get_dashboards(self) -> list[HicacheDashboard]:
        return [
            self.registry.get_component(HicacheDashboard, name)
            for name in self._get_dashboard_names()
        ]
