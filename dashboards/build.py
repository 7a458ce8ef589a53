"""Make the dashboards' JSON from their sources.

    python dashboards/build.py            # writes dashboards/json/
    python dashboards/build.py --check    # fails if what is committed differs

grafana-dashboard-builder reads the YAML, knows the components and writes the files; the
components are ours.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from components import HicacheProject, SourceError
from components.source import checked
from grafana_dashboards import errors
from grafana_dashboards.components.base import ComponentRegistry
from grafana_dashboards.exporter import FileExporter, ProjectProcessor
from grafana_dashboards.gdbyaml import GDBLoader
from grafana_dashboards.parser import DefinitionParser

HERE = Path(__file__).resolve().parent
SOURCES = tuple(sorted((HERE / "sources").glob("*.yaml")))


class Parser(DefinitionParser):  # type: ignore[misc]  # the library is untyped
    """Finds our projects; refuses a component that the library would skip in silence."""

    def load_projects(self, paths: Iterable[Path]) -> Any:
        registry = ComponentRegistry()
        for path in paths:
            with path.open(encoding="utf-8") as file:
                for document in yaml.load_all(file, Loader=GDBLoader):
                    if not isinstance(document, list):
                        raise SourceError("a list of components is wanted")
                    for component in document:
                        self._check(component)
                        registry.add(component)
        return registry[HicacheProject]

    @staticmethod
    def _check(component: Any) -> None:
        """Raise SourceError for what the library would skip, or fail at without a word."""
        if not isinstance(component, dict):
            raise SourceError(f"{component!r} is no component")
        kinds = set(component) - {"name"}
        if kinds not in ({"hicache-project"}, {"hicache-dashboard"}):
            raise SourceError(f"unknown component {', '.join(sorted(map(str, kinds)))}")
        (kind,) = kinds
        checked(kind, component, {"name": str, kind: dict})
        if kind == "hicache-project":
            names = checked(kind, component[kind], {"dashboards": list})["dashboards"]
            if not all(isinstance(name, str) for name in names):
                raise SourceError(
                    f"{kind}: key 'dashboards' is {names!r}, which is no list of names"
                )


def build(sources: Iterable[Path], out: Path) -> None:
    """Write the dashboards of *sources* under *out*.

    Raises:
        SourceError: a source cannot be built; the text names file and key.
    """
    processor = ProjectProcessor([FileExporter(output_folder=str(out))])
    for path in sources:
        try:
            processor.process_projects(Parser().load_projects([path]))
        except (SourceError, errors.DashboardBuilderException, yaml.YAMLError) as error:
            text = " ".join(str(error).split())
            raise SourceError(f"{path.name}: {text}") from error


def main(arguments: list[str]) -> int:
    check = arguments == ["--check"]
    if arguments and not check:
        print("usage: python dashboards/build.py [--check]", file=sys.stderr)
        return 2
    try:
        if not check:
            build(SOURCES, HERE)
            return 0
        with tempfile.TemporaryDirectory() as folder:
            build(SOURCES, Path(folder))
            made = {path.name: path.read_bytes() for path in Path(folder, "json").iterdir()}
    except SourceError as error:
        print(f"dashboards/build.py: {error}", file=sys.stderr)
        return 1
    committed = {path.name: path.read_bytes() for path in (HERE / "json").glob("*.json")}
    stale = sorted(name for name in {*made, *committed} if made.get(name) != committed.get(name))
    for name in stale:
        print(f"dashboards/build.py: json/{name} is not what its source makes", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
