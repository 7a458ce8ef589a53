"""Alerts, causes, runbooks and links belong together; what a runbook tells one to run does run."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import promql_parser
import pytest
import yaml
from click.testing import CliRunner

from hicache_obs.cli import main
from hicache_obs.cli.explain import explain
from hicache_obs.metrics import EXPORTER_METRICS, METRICS, WORKER_LABELS
from hicache_obs.rules.of_failure import by_name
from hicache_obs.rules.recording import recordings
from hicache_obs.rules.render import rules
from hicache_obs.rules.thresholds import Thresholds

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDER = DOCS / "runbooks"
ALERTS = by_name()
PAGES = [*sorted(FOLDER.glob("*.md")), DOCS / "alerts.md", DOCS / "hooks.md"]
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "When it resolves", "Silence"]
ADDED = {"cluster", "namespace", "pod", "host", "job", "instance"}
"""Labels that the exporter or Prometheus adds."""
KNOWN_LABELS = {
    **{m.name: {*m.labels, *WORKER_LABELS, *ADDED} for m in (*METRICS, *EXPORTER_METRICS)},
    **{r.name: {"model_name", "server_port", *ADDED} for r in recordings()},
    "up": {"job", "instance"},
    "ALERTS": {"alertname", "alertstate"},
}


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """What stands under the heading *title*, of whatever level, up to the next of that level."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", text, re.M | re.S)
    assert found is not None, title
    return found[2].strip()


def blocks(text: str, language: str) -> Iterator[str]:
    """The code blocks of a *language*, without the indent of a list that they stand in."""
    fence = rf"^( *)```{language}\n(.*?)^\1```$"
    for indent, body in re.findall(fence, text, re.M | re.S):
        yield re.sub(rf"^{indent}", "", body, flags=re.M)


def commands(path: Path, program: str) -> Iterator[list[str]]:
    """The arguments of each call of *program*, also behind ``kubectl exec ... --`` or a pipe."""
    for block in itertools.chain(*(blocks(path.read_text(), kind) for kind in ("console", "sh"))):
        for line in block.replace("\\\n", " ").splitlines():
            assert line.startswith("$ "), f"{path.name}: no command: {line}"
            words = shlex.split(line[2:])
            while program in words:
                words = words[words.index(program) + 1 :]
                yield list(itertools.takewhile(lambda word: word != "|", words))


def headings(path: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


# Alerts, causes, pages


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} - {"README"} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_begins_with_its_three_lines_and_has_its_sections_in_order(name: str) -> None:
    text, alert = text_of(name), ALERTS[name]
    assert text.startswith(
        f"# {name}\n\n<!-- table: first-lines {name} -->\n"
        f"- **Is traffic affected now?** {alert.traffic}\n"
        f"- **Do first:** {alert.first}\n"
        f"- **It worked when:** {alert.worked}\n"
        "<!-- end -->\n\n## Meaning\n"
    )
    assert re.findall(r"^## (.*)", text, re.M) == SECTIONS
    assert f"<!-- table: facts {name} -->" in section(text, "Meaning")
    assert section(text, "When it resolves").startswith(f"<!-- table: resolves {name} -->")
    assert "kubectl -n NAMESPACE" in section(text, "Diagnosis")


@pytest.mark.parametrize("name", ALERTS)
def test_every_cause_has_a_section_in_the_words_of_explain(name: str) -> None:
    mitigation = text_of(name).partition("## Mitigation\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.*)", mitigation, re.M) == list(ALERTS[name].causes)
    for cause in ALERTS[name].causes:
        told = CliRunner().invoke(explain, [cause]).stdout
        own = section(mitigation, cause)
        assert own.startswith(f"<!-- table: cause {cause} -->\n**Means:** ")
        means, do = (re.search(rf"\*\*{word}:\*\* (.*)\.$", own, re.M) for word in ("Means", "Do"))
        assert means is not None
        assert do is not None
        assert f"    means: {means[1]}\n    do: {do[1]}\n" in told
        assert len(own.partition("<!-- end -->")[2]) > 30, f"{cause}: nothing beyond explain"


def test_the_generated_parts_are_up_to_date_and_a_stale_one_is_seen() -> None:
    tables = _tables()
    for path in tables.FILES:
        text = path.read_text(encoding="utf-8")
        assert tables.rendered(text) == text, f"{path.name}: run python docs/tables.py"
    assert set(PAGES) < set(tables.FILES)
    stale = text_of("HiCacheRegistrationFailed").replace("**Do:** ", "**Do:** not ")
    assert tables.rendered(stale) == text_of("HiCacheRegistrationFailed")


def _tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_alerts_and_thresholds_are_whole() -> None:
    alerts = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) ", text_of("README"), re.M)
    assert alerts == [(name, name) for name in ALERTS]
    rows = re.findall(
        r"^\| `(\w+)` \|", section((DOCS / "alerts.md").read_text(), "Thresholds"), re.M
    )
    assert rows == list(vars(Thresholds()))
    assert f"{len(ALERTS)} alerts" in (DOCS / "alerts.md").read_text()


# Links


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_link_inside_the_project_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        assert page.is_file(), target
        assert not anchor or anchor in headings(page), target


def test_every_runbook_url_of_the_rules_leads_to_a_heading() -> None:
    groups = yaml.safe_load(rules(runbooks="https://example.com/docs"))["groups"]
    found = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(found) == len(ALERTS)
    for rule in found:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        path = FOLDER / page.removeprefix("https://example.com/docs/")
        assert path.is_file(), page
        causes = ALERTS[rule["alert"]].causes
        assert anchor == ("{{ $labels.cause }}" if causes else "")
        assert set(causes) <= headings(path)


# What is to be run


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_of_ours_runs(path: Path, tmp_path: Path) -> None:
    """Those that only read are run, on an empty directory; of the others name and flags."""
    for words in commands(path, "hicache-obs"):
        if words == ["--version"]:
            continue
        name, *arguments = words
        assert name in main.commands, words
        main.commands[name].make_context(name, list(arguments))
        if name in ("status", "events"):
            arguments = [*_without_directory(arguments), "--journal.dir", str(tmp_path)]
        elif name != "explain" or not arguments:
            continue
        done = CliRunner().invoke(main, [name, *arguments])
        assert done.exit_code == 0, (words, done.output)


def _without_directory(arguments: list[str]) -> list[str]:
    return [
        word
        for before, word in itertools.pairwise(["", *arguments])
        if "--journal.dir" not in (before, word)
    ]


def test_a_command_that_does_not_exist_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ kubectl exec POD -- hicache-obs status --jsn | cat\n```\n")
    with pytest.raises(Exception, match="--jsn"):
        test_every_command_of_ours_runs(page, tmp_path)


@pytest.mark.parametrize("name", ALERTS)
def test_a_silence_is_one_that_amtool_takes(name: str, program: Callable[[str, str], str]) -> None:
    amtool = program("amtool", "prometheus-alertmanager")
    (words,) = commands(FOLDER / f"{name}.md", "amtool")
    assert words[:2] == ["silence", "add"]
    flags = dict(word.split("=", 1) for word in words if word.startswith("--"))
    assert {"--duration", "--author", "--comment"} <= flags.keys()
    labels = dict(word.split("=", 1) for word in words[2:] if not word.startswith("--"))
    assert labels.pop("alertname") == name
    assert labels
    assert labels.keys() <= _labels(ALERTS[name].expr)
    assert labels.get("cause", "") in ("", *ALERTS[name].causes)
    # amtool reads flags, duration and matchers before it looks for an Alertmanager.
    nowhere = [w.replace("http://ALERTMANAGER:9093", "http://127.0.0.1:1") for w in words]
    done = subprocess.run([amtool, *nowhere], capture_output=True, text=True, check=False)
    assert "connection refused" in done.stderr, done.stderr


def _labels(expr: str) -> set[str]:
    """The labels that an alert of *expr* can have."""
    if expr.startswith("up{"):
        return {"job", "instance"}
    return set(", ".join(re.findall(r"by \((.*?)\)", expr)).split(", "))


def queries() -> list[tuple[str, str]]:
    found = [(path.stem, query) for path in PAGES for query in blocks(path.read_text(), "promql")]
    assert len(found) > len(ALERTS)
    return found


def test_every_query_is_one_that_prometheus_takes(promtool: str, tmp_path: Path) -> None:
    named = [
        {"record": f"query:{page}:{number}", "expr": query}
        for number, (page, query) in enumerate(queries())
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": named}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("page", "query"), queries())
def test_every_query_asks_for_what_there_is(page: str, query: str) -> None:
    selectors = re.findall(r"([a-zA-Z_:][\w:]*)\{(.*?)\}", str(promql_parser.parse(query)))
    assert selectors
    for metric, matchers in selectors:
        assert metric in KNOWN_LABELS, page
        assert set(re.findall(r"(\w+)[=!]", matchers)) <= KNOWN_LABELS[metric], page


def test_every_place_of_a_fault_is_in_its_runbook() -> None:
    counted = set()
    for path in (ROOT / "hicache_obs").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        counted |= set(re.findall(r'faults\.count\(\s*f?"([a-z]+_?[a-z_]*)', source))
        noticed = re.findall(r'(?:notice|problems\.count)\(\s*f?"(\w+)', source)
        counted |= {f"exporter_{where}" for where in noticed}
    assert {"hook_", "journal_write", "exporter_look"} < counted
    told = section(text_of("HiCacheObsErrors"), "Mitigation")
    assert [place for place in sorted(counted) if f"`{place}" not in told] == []
