"""``hicache-obs explain``: a code, a cause, or a log, in words."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import click
from rich.console import Console

from hicache_obs.causes import CAUSES, Cause
from hicache_obs.causes import explain as cause_of
from hicache_obs.codes import SPACES, Code, meanings
from hicache_obs.log_lines import LINES, Line

_NUMBER = re.compile(r"(?:rc=|code=|errno=|ret:)?(-?\d{1,9})")
_SHOWN = 300


@dataclass
class Found:
    """A known kind of line in a log: where first, how often, and the causes that it tells."""

    line: Line
    number: int
    text: str
    causes: tuple[str, ...]
    codes: tuple[int, ...]
    count: int = 1


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[CODE|CAUSE]...")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def explain(words: tuple[str, ...], as_json: bool) -> None:
    """Say what a return code or a cause means and what to do; or find the known failure lines in
    an SGLang log on standard input.

    Ends with 0 if something was explained, 1 if a log holds nothing known, 2 for a word or number
    that is not known.

    \b
    Example: hicache-obs explain -1 foreign_buffer
             kubectl logs sglang-0 | hicache-obs explain
    """
    if words and words != ("-",):
        _words(words, as_json)
        return
    if sys.stdin.isatty():
        raise click.UsageError("name a code or a cause, or give a log on standard input")
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]  # a text stream here
    found = sorted(search(sys.stdin), key=lambda one: (one.line.rank, one.number))
    if as_json:
        click.echo(json.dumps({"v": 1, "found": [_row(one) for one in found]}, indent=2))
    elif found:
        _print_found(found)
    else:
        click.echo("no known failure line of HiCache or Mooncake in this log", err=True)
    sys.exit(0 if found else 1)


def search(log: TextIO) -> Iterable[Found]:
    """The known lines of a log, once each by what they tell, however long it is."""
    kinds: dict[tuple[Line, tuple[str, ...], tuple[int, ...]], Found] = {}
    for number, text in enumerate(log, 1):
        for line in LINES:
            match = line.pattern.search(text)
            if match is None:
                continue
            told = match.groupdict()
            causes = (told["cause"],) if told.get("cause") else line.causes
            codes = tuple(int(told[name]) for name in ("code", "errno") if told.get(name))
            causes = causes or tuple(dict.fromkeys(c for v in codes for c in _of_registration(v)))
            known = kinds.get((line, causes, codes))
            if known is None:
                shown = text.strip()[:_SHOWN]
                kinds[line, causes, codes] = Found(line, number, shown, causes, codes)
            else:
                known.count += 1
    return kinds.values()


def _of_registration(value: int) -> Iterator[str]:
    for code in meanings(value):
        if code.space == "store":
            yield from code.causes


def _words(words: tuple[str, ...], as_json: bool) -> None:
    explained = [(word, _known(word)) for word in words]
    if as_json:
        rows = [
            {
                "word": word,
                "causes": [_fields(c) for c in causes],
                "codes": [_fields(c) for c in codes],
            }
            for word, (causes, codes) in explained
        ]
        click.echo(json.dumps({"v": 1, "explained": rows}, indent=2))
        return
    console = _console()
    for word, (causes, codes) in explained:
        for cause in causes:
            _print_cause(console, cause)
        for code in codes:
            title = f"{word}  {code.name}  ({SPACES[code.space]})"
            _print(console, title, code.meaning, code.action)
            if code.causes:
                console.print(f"    it may be: {', '.join(code.causes)}", markup=False)


def _known(word: str) -> tuple[list[Cause], list[Code]]:
    if word in CAUSES:
        return [CAUSES[word]], []
    number = _NUMBER.fullmatch(word)
    codes = meanings(int(number[1])) if number else []
    if codes:
        return [], codes
    near = difflib.get_close_matches(word, CAUSES, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"causes are: {', '.join(CAUSES)}"
    click.echo(f"hicache-obs explain: {word!r} is no known code or cause; {hint}", err=True)
    sys.exit(2)


def _fields(row: Cause | Code) -> dict[str, Any]:
    return row._asdict()


def _row(one: Found) -> dict[str, Any]:
    return {
        "line": one.number,
        "count": one.count,
        "text": one.text,
        "says": one.line.says,
        "certain": one.line.rank == 0 and len(one.causes) == 1,
        "causes": [_fields(cause_of(name)) for name in one.causes],
        "codes": [_fields(code) for value in one.codes for code in meanings(value)],
    }


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _print(console: Console, title: str, meaning: str, action: str) -> None:
    console.print(title, style="bold", markup=False)
    console.print(f"    means: {meaning}", markup=False)
    console.print(f"    do: {action}", markup=False, style="green")


def _print_cause(console: Console, cause: Cause) -> None:
    _print(console, cause.name, cause.meaning, cause.action)


def _print_found(found: list[Found]) -> None:
    console = _console()
    told: set[str] = set()
    for one in found:
        times = f", {one.count} times" if one.count > 1 else ""
        console.print(f"line {one.number}{times}: {one.line.says}", style="bold", markup=False)
        console.print(f"    {one.text}", style="dim", markup=False)
        new = [name for name in one.causes if name not in told]
        told.update(new)
        if len(one.causes) > 1:
            console.print(f"    it may be: {', '.join(one.causes)}", markup=False)
        elif not new and one.causes:
            console.print(f"    cause {one.causes[0]}: see above", markup=False)
        elif new:
            _print_cause(console, cause_of(new[0]))
