"""Wheel and source archive: what they carry, and that they work where nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from exporter_process import Exporter

from hicache_obs import __version__

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "unit" / "recorded" / "0.1.0-first"


def run(*command: str | Path, **how: object) -> str:
    """What *command* printed; it must end well."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel that was made of it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    return out


@pytest.fixture(scope="module")
def wheel(made: Path) -> Path:
    return next(made.glob("hicache_obs-*.whl"))


@pytest.fixture(scope="module")
def sdist(made: Path) -> Path:
    return next(made.glob("hicache_obs-*.tar.gz"))


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
    assert done.stdout.strip() == f"{__version__} ['hicache_obs']"


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


def test_the_wheel_of_a_checkout_is_that_of_the_source_archive(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT)

    def content(path: Path) -> dict[str, int]:
        return {info.filename: info.CRC for info in zipfile.ZipFile(path).infolist()}

    assert content(next(tmp_path.glob("*.whl"))) == content(wheel)


def test_the_source_archive_carries_tests_docs_and_deploy_but_nothing_that_is_made(
    sdist: Path,
) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in ("Makefile", "CHANGELOG.md", "LICENSE", "deploy/README.md", "docs/alerts.md"):
        assert wanted in names
    assert "tests/unit/test_package.py" in names
    assert not [n for n in names if re.search(r"(^|/)(\.cache|\.venv|\.git|__pycache__)/", n)]


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def clean(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A virtual environment with hicache-obs and what it brings; and what it was made of."""
    source = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source)
    return folder / "bin", source


def test_it_works_where_only_its_dependencies_are(clean: tuple[Path, Path], tmp_path: Path) -> None:
    bin_, source = clean
    apart = {"PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    run(bin_ / "python", "-m", "pip", "check", env=apart, cwd=tmp_path)
    assert run("hicache-obs", "--version", env=apart) == f"hicache-obs, version {__version__}\n"
    assert f"-{__version__}" in source.name
    assert "foreign_buffer" in run("hicache-obs", "explain", "foreign_buffer", env=apart)
    (tmp_path / "journals").mkdir()
    for file in RECORDED.iterdir():
        (tmp_path / "journals" / file.name).write_bytes(file.read_bytes())
    one = Exporter(f"--journal.dir={tmp_path}/journals", python=[f"{bin_}/hicache-obs"], env=apart)
    one.wait_for(r'hicache_failure_active\{.*cause="foreign_buffer".*\} 1')
    assert one.get("/")[1].startswith("<!doctype html>")
    one.end()
    one.close()


def test_its_types_are_seen_by_who_installs_it(clean: tuple[Path, Path], tmp_path: Path) -> None:
    """mypy on a user's module, in the clean environment: py.typed is there, and says enough."""
    (tmp_path / "user.py").write_text(
        "from hicache_obs.causes import CAUSES\n"
        "from hicache_obs.wire import from_line\n"
        "reveal_type(from_line(b''))\n"
        "reveal_type(list(CAUSES))\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", clean[0] / "python"]
    told = run(*mypy, "user.py", cwd=tmp_path)
    assert 'Revealed type is "hicache_obs.wire.Record"' in told
    assert 'list[str]"' in told


def test_the_version_stands_in_one_place() -> None:
    """A release changes hicache_obs/__init__.py, and CHANGELOG.md says what is in it."""
    elsewhere = [
        path.relative_to(ROOT)
        for path in (ROOT / "pyproject.toml", *(ROOT / "hicache_obs").rglob("*.py"))
        if __version__ in path.read_text(encoding="utf-8")
    ]
    assert elsewhere == [Path("hicache_obs/__init__.py")]


def test_the_changelog_is_kept() -> None:
    """By Keep a Changelog: newest first, known sections, and this version or what leads to it."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.M)
    assert len(releases) == len(re.findall(r"^## ", text, re.M))
    assert releases[0] == ("Unreleased", "") or releases[0][0] == __version__
    assert all(date for version, date in releases if version != "Unreleased")
    dates = [date for _, date in releases if date]
    assert dates == sorted(dates, reverse=True)
    known = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.M)) <= known
