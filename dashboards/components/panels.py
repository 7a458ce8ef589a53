"""The panels. Each has a title, a description, a unit, and words for when there is nothing."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from grafana_dashboards.components.panels import PanelsItemBase

from components.source import DATASOURCE, NUMBER, SourceError, address, checked

PLUGIN_VERSION = "12.0.0"
_FIELD = re.compile(r"\$\{__data\.fields\.(\w+)\}")
_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_SIZE = {"w": int, "h": int}
_REDUCED = {"values": False, "calcs": ["lastNotNull"], "fields": ""}
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}


class _Panel(PanelsItemBase):  # type: ignore[misc]  # the library is untyped
    """A panel that shows queries; the variables are put into these by the dashboard."""

    kind: ClassVar[str]
    size: ClassVar[tuple[int, int]] = (12, 8)
    instant: ClassVar[bool] = False
    table: ClassVar[bool] = False
    options: ClassVar[dict[str, Any]] = {}
    custom: ClassVar[dict[str, Any]] = {}
    more: ClassVar[dict[str, type]] = {}
    """Keys of a source that only this kind of panel has."""

    def gen_json_from_data(self, data: Any, context: Any) -> dict[str, Any]:
        what = f"panel {data.get('title', self.kind)!r}" if isinstance(data, dict) else self.kind
        checked(
            what,
            data,
            {"title": str, "description": str, "unit": str, "empty": str, "queries": list},
            {**_SIZE, "thresholds": dict, "mappings": dict, **self.more},
        )
        width, height = data.get("w", self.size[0]), data.get("h", self.size[1])
        return {
            "type": self.kind,
            "title": data["title"],
            "description": data["description"],
            "transparent": False,
            "pluginVersion": PLUGIN_VERSION,
            "datasource": DATASOURCE,
            "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
            "targets": [
                self._target(what, number, query) for number, query in enumerate(data["queries"])
            ],
            "options": self._options(data),
            "fieldConfig": {
                "defaults": self._defaults(what, data),
                "overrides": self._overrides(data),
            },
            **self._more(data),
        }

    def _target(self, what: str, number: int, query: Any) -> dict[str, Any]:
        checked(f"query {number + 1} of {what}", query, {"expr": str}, {"legend": str})
        return {
            "refId": chr(ord("A") + number),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query["expr"],
            "legendFormat": query.get("legend", "__auto"),
            "format": "table" if self.table else "time_series",
            "instant": self.instant,
            "range": not self.instant,
        }

    def _options(self, data: Any) -> dict[str, Any]:
        return dict(self.options)

    def _defaults(self, what: str, data: Any) -> dict[str, Any]:
        steps: list[dict[str, Any]] = [
            {"color": "green" if "thresholds" in data else "text", "value": None}
        ]
        for value, colour in data.get("thresholds", {}).items():
            if not isinstance(value, NUMBER) or not isinstance(colour, str):
                raise SourceError(f"{what}: threshold {value!r}: {colour!r} is no number: colour")
            steps.append({"color": colour, "value": value})
        mode = "thresholds" if "thresholds" in data or self.instant else "palette-classic"
        return {
            "unit": data["unit"],
            "noValue": data["empty"],
            "color": {"mode": mode},
            "thresholds": {"mode": "absolute", "steps": steps},
            "mappings": [] if self.table else _mappings(what, data),
            "custom": dict(self.custom),
        }

    def _overrides(self, data: Any) -> list[dict[str, Any]]:
        return []

    def _more(self, data: Any) -> dict[str, Any]:
        return {}


def _mappings(what: str, data: Any) -> list[dict[str, Any]]:
    return [
        _mapping(what, index, value, shown)
        for index, (value, shown) in enumerate(data.get("mappings", {}).items())
    ]


def _mapping(what: str, index: int, value: Any, shown: Any) -> dict[str, Any]:
    match shown:
        case [str(text), str(colour)] if isinstance(value, NUMBER):
            option = {"text": text, "color": colour, "index": index}
            return {"type": "value", "options": {str(value): option}}
    raise SourceError(f"{what}: mapping {value!r}: {shown!r} is no number: [text, colour]")


class StatPanel(_Panel):
    """``stat-panel:`` one number."""

    kind, size, instant = "stat", (4, 4), True
    options: ClassVar = {
        "reduceOptions": _REDUCED,
        "orientation": "auto",
        "textMode": "auto",
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "percentChangeColorMode": "standard",
        "showPercentChange": False,
        "wideLayout": True,
    }


class BarPanel(_Panel):
    """``bar-panel:`` a bar for each row, now."""

    kind, size, instant = "bargauge", (6, 6), True
    options: ClassVar = {
        "reduceOptions": _REDUCED,
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "color",
        "showUnfilled": True,
        "minVizHeight": 16,
        "minVizWidth": 8,
        "maxVizHeight": 300,
        "namePlacement": "auto",
        "sizing": "auto",
        "text": {"titleSize": 13, "valueSize": 18},
        "legend": _LEGEND | {"showLegend": False},
    }

    def _defaults(self, what: str, data: Any) -> dict[str, Any]:
        found = super()._defaults(what, data) | {"min": 0}
        if len(data["queries"]) == 1 and "legend" in data["queries"][0]:
            # By its legend alone, Grafana leaves a bar that has no other beside it without a name.
            legend = data["queries"][0]["legend"]
            found["displayName"] = _LABEL.sub(r"${__field.labels.\1}", legend)
        return found


class TimePanel(_Panel):
    """``time-panel:`` a line for each row, over time; stacked with ``stack: true``."""

    kind = "timeseries"
    more: ClassVar = {"stack": bool}
    options: ClassVar = {
        "legend": _LEGEND | {"displayMode": "table", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    custom: ClassVar = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 10,
        "showPoints": "auto",
        "spanNulls": False,
        "lineInterpolation": "stepAfter",
        "stacking": {"mode": "none", "group": "A"},
        "thresholdsStyle": {"mode": "off"},
    }

    def _options(self, data: Any) -> dict[str, Any]:
        """A legend in a line where a table would leave no room for the graph."""
        low = data.get("h", self.size[1]) < self.size[1]
        return self.options | ({"legend": _LEGEND} if low else {})

    def _defaults(self, what: str, data: Any) -> dict[str, Any]:
        found = super()._defaults(what, data) | {"min": 0}
        found["color"] = {"mode": "palette-classic"}
        if "thresholds" in data:
            found["custom"]["thresholdsStyle"] = {"mode": "line"}
        if data.get("stack"):
            found["custom"] |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}
        return found


class StatesPanel(_Panel):
    """``states-panel:`` a state for each row, over time; ``mappings`` name the states."""

    kind = "state-timeline"
    options: ClassVar = {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.9,
        "legend": _LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
    }
    custom: ClassVar = {"lineWidth": 0, "fillOpacity": 70}


class TablePanel(_Panel):
    """``table-panel:`` a row for each series, now.

    ``columns`` are its labels in order, each with its heading; ``Value`` is the number, left out
    unless it is one of them. The panel's unit is the number's; ``units`` give one to a label that
    is a number. ``links`` give a column a link: ``{column: {title, url}}``.
    """

    kind, size, instant, table = "table", (24, 7), True, True
    more: ClassVar = {"columns": dict, "units": dict, "links": dict}
    options: ClassVar = {"showHeader": True, "cellHeight": "sm", "frameIndex": 0}
    custom: ClassVar = {
        "align": "auto",
        "cellOptions": {"type": "auto"},
        "filterable": True,
        "inspect": False,
        "minWidth": 80,
    }

    def _overrides(self, data: Any) -> list[dict[str, Any]]:
        columns = _columns(data)
        units, links = data.get("units", {}), data.get("links", {})
        for what, names in (("unit", units), ("link", links)):
            for name in names:
                if name not in columns:
                    raise SourceError(f"panel {data['title']!r}: {what} of no column {name!r}")
        # Grafana formats a text that looks like a number, and says `noValue` in an empty cell.
        found = [_override("byType", "string", {"unit": "string", "noValue": ""})]
        # Of the panel they would name a rank 1 as well, and an override can add to them only.
        mappings = _mappings(f"panel {data['title']!r}", data)
        if mappings:
            found.append(_override("byType", "number", {"mappings": mappings}))
        found += [
            _override("byName", columns[name], {"unit": unit}) for name, unit in units.items()
        ]
        for name, link in links.items():
            what = f"link of column {name!r} of panel {data['title']!r}"
            checked(what, link, {"title": str, "url": str})
            for heading in _FIELD.findall(link["url"]):
                if heading not in columns.values():
                    raise SourceError(f"{what}: there is no column {heading!r}")
            target = {"title": link["title"], "url": address(link["url"]), "targetBlank": False}
            found.append(_override("byName", columns[name], {"links": [target]}))
        return found

    def _more(self, data: Any) -> dict[str, Any]:
        columns = _columns(data)
        return {
            "transformations": [
                {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
                {
                    "id": "organize",
                    "options": {
                        "excludeByName": {},
                        "includeByName": {},
                        "indexByName": {name: number for number, name in enumerate(columns)},
                        "renameByName": columns,
                    },
                },
            ]
        }


def _columns(data: Any) -> dict[str, str]:
    """The columns of a table: headings by label."""
    checked(f"panel {data['title']!r}", {"columns": data.get("columns")}, {"columns": dict})
    columns: dict[str, str] = data["columns"]
    checked(f"columns of panel {data['title']!r}", columns, dict.fromkeys(columns, str))
    return columns


def _override(matcher: str, of: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "matcher": {"id": matcher, "options": of},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


PANELS = {one.kind for one in (StatPanel, BarPanel, TimePanel, StatesPanel, TablePanel)}
"""The kinds of panel that a dashboard may have."""
