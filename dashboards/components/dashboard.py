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
from components.promql import expand
from components.source import DATASOURCE, SourceError, address, checked

SCHEMA_VERSION = 42
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
        what = "query-annotation"
        checked(what, data, ("name", "expr", "colour", "title", "tags"))
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
        checked("page-link", data, ("title", "url", "tooltip"), ("variables",))
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
        keys = ("title", "uid", "description", "time", "templates", "annotations", "links", "rows")
        checked("hicache-dashboard", data, keys)
        made = {
            name: self.registry.create_component(kind, data).gen_json()
            for name, kind in (
                ("templates", Templates),
                ("annotations", Annotations),
                ("links", Links),
                ("rows", Rows),
            )
        }
        for number, row in enumerate(data["rows"], 1):
            checked(f"row {number}", row.get("row", row), ("title", "panels"))
        variables = [one["name"] for one in made["templates"] if one["type"] == "query"]
        panels = list(_laid_out(made["rows"]))
        for target in _targets(panels, made["annotations"]):
            target["expr"] = expand(target["expr"], variables)
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


def _targets(panels: list[Any], annotations: list[Any]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield from panel.get("targets", ())
    yield from (annotation["target"] for annotation in annotations)


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
