"""The wheel: what it carries, and that it works where nothing else is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("hicache_obs-*.whl"))


def test_rules_dashboards_and_bench_travel_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "hicache_obs/py.typed",
        "hicache_obs/exporter/page.html.j2",
        "hicache_obs/_share/deploy/prometheus/hicache-obs.rules.yml",
        "hicache_obs/_share/deploy/alertmanager/hicache-obs.routes.yml",
        "hicache_obs/_share/dashboards/json/hicache-fleet.json",
        "hicache_obs/_share/bench/server.py",
    ):
        assert wanted in names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


def test_the_plugin_loads_from_the_wheel_without_any_dependency(
    wheel: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = """
import sys
from importlib.metadata import entry_points, version
sys.modules.pop("hicache_obs", None)
point, = entry_points(group="sglang.srt.plugins")
before = set(sys.modules)
register = point.load()
assert "hicache_obs.plugin" in sys.modules, point
outside = {m.split(".")[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(version("hicache-obs"), sorted(outside))
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0.1.0 ['hicache_obs']"


def test_the_wheel_exports_the_rules_and_dashboards_that_are_committed(
    wheel: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import sys; sys.path.insert(0, 'site'); from hicache_obs.cli import main; main()"
    committed = {
        "export-rules": [ROOT / "deploy" / "prometheus" / "hicache-obs.rules.yml"],
        "export-dashboards": sorted((ROOT / "dashboards" / "json").glob("*.json")),
    }
    for command, files in committed.items():
        done = subprocess.run(
            [sys.executable, "-c", code, command, "out"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"out/{path.name}" for path in files]
        assert all((tmp_path / "out" / f.name).read_bytes() == f.read_bytes() for f in files)
