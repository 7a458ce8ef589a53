"""``hicache-obs explain``: a code, a cause, an alert, or a log, in words."""

from __future__ import annotations

import difflib
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TextIO

import click
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from hicache_obs.causes import CAUSES, Cause
from hicache_obs.causes import explain as cause_of
from hicache_obs.codes import CODES, SPACES, Code, meanings
from hicache_obs.known_line import TELLS, Line
from hicache_obs.log_lines import LINES
from hicache_obs.rules.alert import Alert
from hicache_obs.rules.of_failure import alerts_of, by_name, runbook

_NUMBER = re.compile(r"(?:(?:rc|code|errno|ret)[=:] ?)?(-?\d{1,9})")
_OF_ALERT = ("name", "severity", "traffic", "first", "worked", "causes")
_SHOWN = 300
LONGEST = 1 << 14
"""Characters of a line that are looked at in one piece: a log may hold gigabytes without an end
of line."""
BLOCK = 500
"""Lines that are searched together: most blocks hold nothing known, and one look tells it."""


@dataclass
class Found:
    """A known kind of line in a log: where first, how often, and the causes that it tells."""

    line: Line
    number: int
    text: str
    causes: tuple[str, ...]
    codes: tuple[Code, ...]
    count: int = 1

    @property
    def certain(self) -> bool:
        """Whether the line names its cause, and does not only narrow it."""
        return self.line.certainty == TELLS and len(self.causes) == 1


@dataclass(frozen=True)
class Known:
    """What a word names: a cause with the *alerts* that may carry it, codes, or an alert."""

    word: str
    causes: tuple[Cause, ...] = ()
    codes: tuple[Code, ...] = ()
    alerts: tuple[Alert, ...] = ()


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[CODE|CAUSE|ALERT]...")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def explain(words: tuple[str, ...], as_json: bool) -> None:
    """Say what a return code (-1, -600, rc=712), a cause or an alert means and what to do first;
    without an argument, or with "-", find the known failure lines in an SGLang log on standard
    input.

    Ends with 0 if something was explained, 1 if a log holds nothing known, 2 for a word or number
    that is not known.

    \b
    Example: hicache-obs explain -1 foreign_buffer HiCacheRegistrationFailed
             kubectl logs sglang-0 | hicache-obs explain
    """
    if words and words != ("-",):
        _explain_words(words, as_json)
        return
    if not words and sys.stdin.isatty():
        raise click.UsageError(
            "name a code, a cause or an alert (hicache-obs explain -1), or give a log on standard "
            "input (hicache-obs explain < sglang.log)"
        )
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    found = root_first(search(sys.stdin))
    if as_json:
        click.echo(json.dumps({"v": 1, "found": [_row(one) for one in found]}, indent=2))
    elif found:
        _show_found(found)
    else:
        click.echo("no known failure line of HiCache or Mooncake in this log", err=True)
    sys.exit(0 if found else 1)


def search(log: TextIO) -> list[Found]:
    """The known lines of a log, once each by what they tell, however long it is."""
    kinds: dict[tuple[Line, tuple[str, ...], tuple[Code, ...]], Found] = {}
    lines = _lines(log)
    while block := list(islice(lines, BLOCK)):
        whole = "".join(text for _, text in block)
        for line in (line for line in LINES if line.pattern.search(whole)):
            for number, text in block:
                match = line.pattern.search(text)
                if match is None:
                    continue
                causes, codes = _told(line, match)
                known = kinds.get((line, causes, codes))
                if known is not None:
                    known.count += 1
                    continue
                shown = text[max(0, match.start() - _SHOWN // 2) :].strip()[:_SHOWN]
                kinds[line, causes, codes] = Found(line, number, shown, causes, codes)
    return list(kinds.values())


def root_first(found: list[Found]) -> list[Found]:
    """The most likely root cause first: what names a cause, then what narrows it, then the rest."""
    return sorted(found, key=lambda one: (one.line.rank, not one.certain, one.number))


def _lines(log: TextIO) -> Iterator[tuple[int, str]]:
    number, begins = 0, True
    while text := log.readline(LONGEST):
        number += begins
        begins = text.endswith("\n")
        yield number, text


def _told(line: Line, match: re.Match[str]) -> tuple[tuple[str, ...], tuple[Code, ...]]:
    groups = match.groupdict()
    code = groups.get("code")
    codes = tuple(meanings(int(code), line.space)) if code else ()
    if groups.get("cause"):
        return (groups["cause"],), codes
    return line.causes or tuple(dict.fromkeys(c for one in codes for c in one.causes)), codes


def _explain_words(words: tuple[str, ...], as_json: bool) -> None:
    explained = [_known(word) for word in words]
    if as_json:
        click.echo(
            json.dumps({"v": 1, "explained": [_word_row(one) for one in explained]}, indent=2)
        )
        return
    console = Console(highlight=False, soft_wrap=True)
    for one in explained:
        for cause in one.causes:
            found = [("alert", f"{a.name}  {runbook(a.name, cause.name)}") for a in one.alerts]
            _show(console, cause.name, [*_cause_lines(cause), *found])
        for code in one.codes:
            lines = [("means", code.meaning), ("do", code.action)]
            if code.causes:
                lines.append(("may be", ", ".join(code.causes)))
            _show(console, f"{one.word}  {code.name}  ({SPACES[code.space]})", lines)
        for alert in () if one.causes else one.alerts:
            _show(console, f"{alert.name}  ({alert.severity})", _alert_lines(alert))


def _known(word: str) -> Known:
    """What *word* names; ends the command where it is nothing."""
    if word in CAUSES:
        return Known(word, causes=(CAUSES[word],), alerts=alerts_of(word))
    alerts = {name.casefold(): alert for name, alert in by_name().items()}
    if word.casefold() in alerts:
        return Known(word, alerts=(alerts[word.casefold()],))
    number = _NUMBER.fullmatch(word)
    codes = tuple(meanings(int(number[1]))) if number else ()
    if codes:
        return Known(word, codes=codes)
    if number:
        near = [str(value) for value in _near(int(number[1]))]
    else:
        names = {name.casefold(): name for name in (*CAUSES, *by_name())}
        near = [names[name] for name in difflib.get_close_matches(word.casefold(), names, n=3)]
    every = f"causes are: {', '.join(CAUSES)}; alerts are: {', '.join(by_name())}"
    hint = f"did you mean {', '.join(near)}?" if near else every
    click.echo(f"hicache-obs explain: {word!r} is no known code, cause or alert; {hint}", err=True)
    sys.exit(2)


def _near(value: int) -> list[int]:
    """Known codes that differ from *value* in the sign only, or in one digit."""
    known = {str(code.value): code.value for code in CODES}
    names = [str(-value), *difflib.get_close_matches(str(value), known, n=3, cutoff=0.7)]
    return [known[name] for name in dict.fromkeys(names) if name in known]


def _word_row(one: Known) -> dict[str, Any]:
    cause = one.causes[0].name if one.causes else ""
    alerts = [
        {name: getattr(alert, name) for name in _OF_ALERT} | {"runbook": runbook(alert.name, cause)}
        for alert in one.alerts
    ]
    return {
        "word": one.word,
        "causes": [cause._asdict() for cause in one.causes],
        "codes": [code._asdict() for code in one.codes],
        "alerts": alerts,
    }


def _row(one: Found) -> dict[str, Any]:
    return {
        "line": one.number,
        "count": one.count,
        "text": one.text,
        "says": one.line.says,
        "certain": one.certain,
        "causes": [cause_of(name)._asdict() for name in one.causes],
        "codes": [code._asdict() for code in one.codes],
        "source": one.line.source,
    }


def _cause_lines(cause: Cause) -> list[tuple[str, str]]:
    return [("means", cause.meaning), ("do", cause.action)]


def _alert_lines(alert: Alert) -> list[tuple[str, str]]:
    """The first three lines of its runbook, its causes, and where it is."""
    lines = [("traffic", alert.traffic), ("do", alert.first), ("worked", alert.worked)]
    if alert.causes:
        lines.append(("causes", ", ".join(alert.causes)))
    return [*lines, ("runbook", runbook(alert.name))]


def _show_found(found: list[Found]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    told: list[str] = []
    for one in found:
        times = f" ({one.count} times)" if one.count > 1 else ""
        lines = [("log", one.text), *_verdict(one, told)]
        told += one.causes if one.certain else ()
        _show(console, f"line {one.number}{times}: {one.line.says}", lines)


def _verdict(one: Found, told: list[str]) -> list[tuple[str, str]]:
    """What a line says of the cause, in the light of those that lines before it have told."""
    known = [name for name in one.causes if name in told]
    codes = [("code", f"{code.name}: {code.meaning} (do: {code.action})") for code in one.codes]
    if not one.certain:
        if known:
            return [("cause", f"most likely {known[0]}, see above")]
        return [*codes, *(("may be", f"{name}: {cause_of(name).action}") for name in one.causes)]
    cause = cause_of(one.causes[0])
    if known:
        return [("cause", f"{cause.name}, see above")]
    return [*codes, ("cause", cause.name), *_cause_lines(cause)]


def _show(console: Console, title: str, lines: list[tuple[str, str]]) -> None:
    """A panel on a terminal; plain lines in a pipe."""
    if not console.is_terminal:
        click.echo("\n".join([title, *(f"    {name}: {text}" for name, text in lines)]))
        return
    styles = {"do": "green", "log": "dim", "cause": "bold red"}
    body = Text("\n").join(
        Text.assemble((f"{name}: ", "bold"), (text, styles.get(name, ""))) for name, text in lines
    )
    console.print(Panel(body, title=Text(title), title_align="left"), soft_wrap=False)
