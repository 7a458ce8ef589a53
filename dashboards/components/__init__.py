"""Our components for grafana-dashboard-builder: Grafana's React panels, at schema version 42.

Importing this package registers them: the library finds its component classes by
``__subclasses__()`` when a registry is made. A key in a YAML source is the kebab-case name of a
class here. Text is taken as it stands: braces of PromQL are not doubled.
"""

from components.dashboard import HicacheDashboard, HicacheProject
from components.panels import PANELS
from components.source import SourceError
from components.variables import DatasourceVariable, LabelVariable

__all__ = [
    "PANELS",
    "DatasourceVariable",
    "HicacheDashboard",
    "HicacheProject",
    "LabelVariable",
    "SourceError",
]
