"""Rules with one small fault each: what the promtool tests of a rule must notice.

A mutant flips one comparator, moves one number or duration, drops one alternative of a regular
expression, negates one label matcher, swaps one set operator, or changes ``for`` or
``keep_firing_for``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from hicache_obs import durations

Rule = dict[str, Any]

_TOKEN = re.compile(
    r"""
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<brace>[{}])
    | (?P<operator>==|!=|=~|!~|>=|<=|>|<|=)
    | (?P<duration>\d+[smhd])
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<word>[A-Za-z_:][\w:]*)
    """,
    re.VERBOSE,
)
_COMPARATORS = {
    "==": ("!=",),
    "!=": ("==",),
    ">": ("<=", ">="),
    ">=": ("<", ">"),
    "<": (">=", "<="),
    "<=": (">", "<"),
}
_MATCHERS = {"=": "!=", "!=": "=", "=~": "!~", "!~": "=~"}
_SET_OPERATORS = ("and", "or", "unless")


class Token(NamedTuple):
    """A piece of an expression. *inside*: whether it stands in the braces of a selector."""

    kind: str
    text: str
    start: int
    inside: bool


class Mutant(NamedTuple):
    """*what* was changed, unique among the mutants of a rule, and the changed rule."""

    what: str
    rule: Rule


def mutants(rule: Rule) -> Iterator[Mutant]:
    """Every mutant of *rule*, as it stands in a rule file; always in the same order."""
    expr = rule["expr"]
    tokens = list(_tokens(expr))
    for number, token in enumerate(tokens):
        before = tokens[number - 1].text if number else ""
        for text in _changed(token, before):
            changed = expr[: token.start] + text + expr[token.start + len(token.text) :]
            place = f"{_place(expr, token)}: {token.text} becomes {text}"
            yield Mutant(place, rule | {"expr": changed})
    for name in ("for", "keep_firing_for"):
        if name in rule:
            yield from _times(rule, name)


def _tokens(expr: str) -> Iterator[Token]:
    inside = False
    for match in _TOKEN.finditer(expr):
        kind, text = str(match.lastgroup), match[0]
        if kind == "brace":
            inside = text == "{"
        yield Token(kind, text, match.start(), inside)


def _changed(token: Token, before: str) -> Iterator[str]:
    """What may stand in place of *token*; *before* is the text of the token before it."""
    if token.inside:
        if token.kind == "operator":
            yield _MATCHERS[token.text]
        elif token.kind == "string" and before in ("=~", "!~"):
            yield from _fewer(token.text)
    elif token.kind == "operator":
        yield from _COMPARATORS[token.text]
    elif token.kind == "number":
        value = float(token.text)
        yield from (f"{value - 1:g}", f"{value + 1:g}")
    elif token.kind == "duration":
        yield from _other_durations(token.text)
    elif token.kind == "word" and token.text in _SET_OPERATORS:
        yield from (other for other in _SET_OPERATORS if other != token.text)


def _fewer(pattern: str) -> Iterator[str]:
    """*pattern*, a quoted regular expression, without one of its alternatives."""
    alternatives = pattern[1:-1].split("|")
    for number in range(len(alternatives) if len(alternatives) > 1 else 0):
        yield f'"{"|".join(alternatives[:number] + alternatives[number + 1 :])}"'
    for one in re.finditer(r"\[(\w|:)(\w|:)\]", pattern):
        for kept in one.groups():
            yield pattern[: one.start()] + kept + pattern[one.end() :]


def _other_durations(text: str) -> tuple[str, str]:
    """Half and twice the duration."""
    length = durations.seconds(text)
    assert length is not None, text
    return durations.text(length // 2), durations.text(length * 2)


def _times(rule: Rule, name: str) -> Iterator[Mutant]:
    yield Mutant(f"{name} is removed", {key: rule[key] for key in rule if key != name})
    for text in _other_durations(rule[name]):
        yield Mutant(f"{name}: {rule[name]} becomes {text}", rule | {name: text})


def _place(expr: str, token: Token) -> str:
    line = expr.count("\n", 0, token.start) + 1
    column = token.start - (expr.rfind("\n", 0, token.start) + 1) + 1
    return f"{line}:{column}"
