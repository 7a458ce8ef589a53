"""The dashboards' variables."""

from __future__ import annotations

from typing import Any

from grafana_dashboards.components.templates import TemplatesItemBase

from components.source import DATASOURCE, checked


class DatasourceVariable(TemplatesItemBase):  # type: ignore[misc]  # the library is untyped
    """``datasource-variable:`` the one choice of a Prometheus."""

    def gen_json_from_data(self, data: Any, context: Any) -> dict[str, Any]:
        checked("datasource-variable", data, {})
        return {
            "type": "datasource",
            "name": "datasource",
            "label": "Data source",
            "query": "prometheus",
            "current": {"text": "default", "value": "default"},
            "regex": "",
            "hide": 0,
            "includeAll": False,
            "multi": False,
            "options": [],
            "refresh": 1,
            "skipUrlSync": False,
        }


class LabelVariable(TemplatesItemBase):  # type: ignore[misc]  # the library is untyped
    """``label-variable:`` the values of a label, all of them unless some are chosen."""

    def gen_json_from_data(self, data: Any, context: Any) -> dict[str, Any]:
        checked("label-variable", data, {"name": str, "label": str, "query": str})
        return {
            "type": "query",
            "name": data["name"],
            "label": data["label"],
            "datasource": DATASOURCE,
            "definition": data["query"],
            "query": {"qryType": 1, "query": data["query"], "refId": f"variable-{data['name']}"},
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
            "hide": 0,
            "includeAll": True,
            "multi": True,
            "options": [],
            "refresh": 2,  # when the time range changes
            "regex": "",
            "skipUrlSync": False,
            "sort": 1,
        }
