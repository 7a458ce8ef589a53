"""What a known failure line is: how it looks, what it says, and how sure its causes are."""

from __future__ import annotations

import re
from typing import NamedTuple

TELLS, MAY_BE = "tells", "may be"
"""How sure the causes of a line are."""

ROOT, REFUSAL, WORSE, AFTER = range(4)
"""Where a line stands between the root of a failure and its end: it names what was wrong; something
was refused; it went on, but worse than asked for; it only follows from another failure."""


class Line(NamedTuple):
    """A *pattern* and the *causes* that it tells or may be; without any it has those of its code.
    Groups of the pattern: ``cause`` is the cause itself, ``code`` a return code of *space*."""

    pattern: re.Pattern[str]
    says: str
    source: str
    certainty: str
    causes: tuple[str, ...]
    rank: int
    space: str


def line(
    pattern: str,
    says: str,
    source: str,
    *,
    tells: str = "",
    may_be: str = "",
    rank: int = ROOT,
    space: str = "",
) -> Line:
    """A known line. *tells* or *may_be*: words of ``causes``, separated by spaces."""
    certainty = MAY_BE if may_be else TELLS
    causes = tuple((tells or may_be).split())
    return Line(re.compile(pattern, re.MULTILINE), says, source, certainty, causes, rank, space)
