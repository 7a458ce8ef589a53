"""``export-rules`` and ``export-dashboards``: what is written, and what is refused."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from hicache_obs.cli import main
from hicache_obs.cli.export import OWN_LABELS
from hicache_obs.rules import alerts

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "deploy" / "prometheus" / "hicache-obs.rules.yml"
RULE_FILE = "hicache-obs.rules.yml"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def exported(directory: Path, *options: str) -> dict[str, Any]:
    """The alerts of the file that was written, by name."""
    result = run("export-rules", directory, *options)
    assert result.exit_code == 0, result.output
    assert result.output == f"{directory / RULE_FILE}\n"
    groups = yaml.safe_load((directory / RULE_FILE).read_text())["groups"]
    return {rule["alert"]: rule for rule in groups[1]["rules"]}


def test_without_options_the_shipped_rules_are_written(tmp_path: Path) -> None:
    exported(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder" / RULE_FILE).read_bytes() == SHIPPED.read_bytes()


def test_for_the_operator_the_same_rules_are_written(tmp_path: Path) -> None:
    options = ("--label", "team=it", "--threshold", "scrape_gap=90s")
    assert run("export-rules", tmp_path, *options).exit_code == 0
    result = run("export-rules", tmp_path, "--operator", *options)
    made = tmp_path / "hicache-obs.prometheusrule.yaml"
    assert result.output == f"{made}\n"
    wrapped = yaml.safe_load(made.read_text())
    assert wrapped["spec"] == yaml.safe_load((tmp_path / RULE_FILE).read_text())
    assert "export-rules DIRECTORY --operator" in made.read_text()


def test_the_file_tells_the_command_that_makes_it_again(tmp_path: Path) -> None:
    exported(
        tmp_path / "first",
        *("--job", 'kv "obs"', "--label", "team=it's us", "--label", "tier=1"),
        *("--runbook-base", "https://wiki.example/kv", "--dashboard-base", "https://g.example"),
        *("--threshold", "scrape_gap=90s", "--threshold", "host_memory_ratio=0.9"),
    )
    made = (tmp_path / "first" / RULE_FILE).read_text()
    lines = itertools.takewhile(lambda line: line.startswith("# "), made.splitlines())
    _, *command = (line.removeprefix("# ").strip() for line in lines)
    program, *arguments = shlex.split(" ".join(command).replace("\\ ", ""))
    assert program == "hicache-obs"
    assert arguments[:2] == ["export-rules", "DIRECTORY"]
    arguments[1] = str(tmp_path / "again")
    assert run(*arguments).exit_code == 0
    assert (tmp_path / "again" / RULE_FILE).read_text() == made


def test_every_option_reaches_the_rules(tmp_path: Path, promtool: str) -> None:
    found = exported(
        tmp_path,
        *("--job", 'kv "obs"', "--label", "team=inference", "--label", "tier=1"),
        *("--runbook-base", "https://wiki.example/kv/", "--dashboard-base", "https://g.example"),
        *("--threshold", "scrape_gap=90s", "--threshold", "crash_loop_starts=5"),
    )
    assert list(found) == [alert.name for alert in alerts()]
    rule = found["HiCacheRegistrationFailed"]
    assert rule["labels"] == {"severity": "critical", "team": "inference", "tier": "1"}
    assert rule["keep_firing_for"] == "90s"
    assert rule["annotations"]["runbook_url"] == (
        "https://wiki.example/kv/HiCacheRegistrationFailed.md#{{ $labels.cause }}"
    )
    assert rule["annotations"]["dashboard_url"].startswith("https://g.example/d/hicache-server?")
    assert found["HiCacheCrashLoop"]["expr"].endswith(">= 5")
    assert 'up{job="kv \\"obs\\""}' in found["HiCacheObsExporterAbsent"]["expr"]
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", str(tmp_path / RULE_FILE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--threshold", "crash_loop_starts=1"), "crash_loop_starts: 1 is not between 2 and 100"),
        (("--threshold", "scrape_gap=2h"), "scrape_gap: 2h is not between 0s and 1h"),
        (("--threshold", "scrape_gap=5"), "scrape_gap: '5' is no duration such as 30s, 5m or 1h"),
        (("--threshold", "crash_loop_starts=x"), "crash_loop_starts: 'x' is no whole number"),
        (("--threshold", "host_memory_ratio=nan"), "host_memory_ratio: nan"),
        (("--threshold", "gap=5m"), "give NAME=VALUE, with one of scrape_gap"),
        (("--threshold", "scrape_gap"), "give NAME=VALUE, with one of scrape_gap"),
        (("--label", "team"), "'team' is not NAME=VALUE"),
        (("--label", "te-am=x"), "'te-am=x' is not NAME=VALUE"),
        (("--label", "severity=info"), "severity is a label of the alerts themselves"),
        (("--label", "namespace=x"), "namespace is a label of the alerts themselves"),
        (("--label", "instance=x"), "instance is a label of the alerts themselves"),
        (("--label", "team={{ nope"), "holds a template or no text"),
        (("--label", "team=\udcff"), "holds a template or no text"),
        (("--label", "team="), "team: '' holds a template or no text"),
        (("--label", "team=a", "--label", "team=b"), "team is given twice, as 'a' and 'b'"),
        (("--job", ""), "'' is no name of a job"),
        (("--job", "a{{b"), "'a{{b' is no name of a job"),
        (("--runbook-base", "docs"), "'docs' is no http or https address"),
        (("--runbook-base", "https://w/x?page=1"), "is no http or https address of a folder"),
        (("--dashboard-base", "https://w/{{x}}"), "is no http or https address of a folder"),
        (("--dashboard-base", "ftp://x"), "'ftp://x' is no http or https address"),
    ],
)
def test_a_bad_option_is_named_and_nothing_is_written(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    result = run("export-rules", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert options[0] in result.output
    assert told in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["export-rules", "export-dashboards"])
def test_a_directory_that_cannot_be_written_gets_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(command, tmp_path / "file" / "folder")
    assert result.exit_code == 1
    line = f"hicache-obs {command}: cannot write to {tmp_path}/file/folder: Not a directory\n"
    assert result.output == line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_gets_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = run("export-rules", tmp_path)
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "Permission denied" in result.output


def test_what_stood_there_is_kept_whole_if_writing_fails(tmp_path: Path) -> None:
    (tmp_path / RULE_FILE).mkdir()
    result = run("export-rules", tmp_path)
    assert result.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == [RULE_FILE]


def test_the_dashboards_are_written_as_committed(tmp_path: Path) -> None:
    result = run("export-dashboards", tmp_path)
    assert result.exit_code == 0, result.output
    names = ["hicache-fleet.json", "hicache-server.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        committed = ROOT / "dashboards" / "json" / name
        assert (tmp_path / name).read_bytes() == committed.read_bytes()
        assert json.loads((tmp_path / name).read_text())["uid"] == name.removesuffix(".json")


def test_no_label_of_an_alerts_rows_can_be_overwritten() -> None:
    """Each label that a rule aggregates by."""
    rules = yaml.safe_load(SHIPPED.read_text())["groups"][1]["rules"]
    by = {
        name
        for rule in rules
        for names in re.findall(r"by \(([^)]*)\)", rule["expr"])
        for name in names.split(", ")
    }
    assert by - {"cluster"} <= OWN_LABELS
