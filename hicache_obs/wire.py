"""The JSON form of events: one line each, at most 8 KiB, schema version in every line.

The schema is additive only: a reader counts what it knows of a line that is newer than itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from typing import Any

from hicache_obs.events import KINDS, Event

SCHEMA_VERSION = 1
MAX_LINE_BYTES = 8192
MAX_TEXT = 500
"""Longest exception text kept, in characters."""
MAX_LABEL = 256
"""Longest other text kept, in characters: label values come from outside."""
MAX_ITEMS = 64
"""Most entries kept of a list or mapping."""


class JournalLineError(ValueError):
    """A journal line that is no event; the message says what is wrong with it."""


@dataclass(frozen=True)
class Record:
    """One line of a journal: its number in the run, its time and its event.

    *unknown* names what a newer writer added and this reader does not know: the event is None
    for an unknown kind; unknown fields of a known kind are left out.
    """

    seq: int
    time: float
    event: Event | None
    unknown: tuple[str, ...] = ()


_FIELDS = {cls: tuple(f.name for f in fields(cls)) for cls in KINDS.values()}
_PREFIXES = {cls: tuple((name, f',"{name}":') for name in names) for cls, names in _FIELDS.items()}
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_quote = json.encoder.encode_basestring_ascii

# What a text from outside may hold and a journal may not: credentials in URLs and assignments.
_SECRETS = (
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://)[^\s/]*@"), r"\1***@"),
    (
        re.compile(r"(?i)(--[\w-]{0,40}(?:key|token|password|secret)[\w-]{0,40}\s{1,5})\S+"),
        r"\1***",
    ),
    (re.compile(r"(?i)(authorization[\"']?\s{0,5}[=:]\s{0,5}[\"']?)[^\"'\n,;}]+"), r"\1***"),
    (
        re.compile(
            r"(?i)((?:token(?!s)|passwo?r?d|passwd|secret|api[_-]?key)[\w.-]{0,40}[\"']?"
            r"\s{0,5}[=:]\s{0,5})(?:\"[^\"]*\"?|'[^']*'?|[^\s\"',;&}]+)"
        ),
        r"\1***",
    ),
)


_CUT_URL = re.compile(r"(://)\S*\Z")


def scrub(text: str) -> str:
    """Take secrets out of *text* and cut it to ``MAX_TEXT`` characters."""
    if len(text) > 4 * MAX_TEXT:
        # Half a URL no longer shows that it holds a password: what follows its :// goes.
        text = _CUT_URL.sub(r"\1***", text[: 4 * MAX_TEXT])
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text[:MAX_TEXT]


def _plain(value: Any, limit: int = MAX_LABEL) -> Any:
    """*value* as JSON can carry it; texts cut, lone surrogates replaced, NaN as null."""
    if isinstance(value, str):
        if len(value) > limit:
            value = value[:limit]
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else 0.0
    if isinstance(value, dict):
        items = list(value.items())[:MAX_ITEMS]
        return {str(_plain(str(k))): _plain(v) for k, v in items}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value[:MAX_ITEMS]]
    return _plain(str(value))


def to_line(event: Event, seq: int, time: float) -> bytes:
    """Encode *event* as one line, newline included, of at most ``MAX_LINE_BYTES`` bytes."""
    parts = [f'{{"v":{SCHEMA_VERSION},"seq":{seq},"t":{time:.6f},"kind":"{event.kind}"']
    for name, prefix in _PREFIXES[type(event)]:
        value = getattr(event, name)
        kind = type(value)
        if not value and kind is str:
            parts.append(prefix + '""')
        elif kind is str and len(value) <= MAX_LABEL and value.isascii() and name != "error":
            parts.append(prefix + _quote(value))
        elif kind is int or (kind is float and isfinite(value)):
            parts.append(f"{prefix}{value}")
        elif value == ():
            parts.append(prefix + "[]")
        else:
            parts.append(prefix + _encode(_cleaned(name, value)))
    parts.append("}\n")
    line = "".join(parts).encode()
    if len(line) > MAX_LINE_BYTES:
        line = _shorten(json.loads(line))
    return line


def _cleaned(name: str, value: Any) -> Any:
    if name == "error" and value:
        return _plain(scrub(value), MAX_TEXT)
    return _plain(value)


def _shorten(row: dict[str, Any]) -> bytes:
    """Halve the longest texts and containers of *row* until its line fits."""
    for limit in (128, 64, 32, 16, 8, 0):
        for name, value in row.items():
            if name == "kind":
                continue
            if isinstance(value, str):
                row[name] = value[: max(limit, 16)]  # outcome and the like stay whole
            elif isinstance(value, dict):
                row[name] = {k[:limit]: str(v)[:limit] for k, v in list(value.items())[:limit]}
            elif isinstance(value, list):
                row[name] = value[:limit]
        row["shortened"] = True
        line = _encode(row).encode() + b"\n"
        if len(line) <= MAX_LINE_BYTES:
            return line
    raise ValueError(f"an event of kind {row['kind']} does not fit into {MAX_LINE_BYTES} bytes")


def from_line(line: bytes) -> Record:
    """Decode one line.

    Raises:
        JournalLineError: the line is not JSON, not an object, or lacks a field that this
            schema requires.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise JournalLineError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise JournalLineError(f"not an object but {type(row).__name__}")
    version, seq, time, kind = (row.pop(key, None) for key in ("v", "seq", "t", "kind"))
    if not isinstance(version, int) or not isinstance(seq, int) or isinstance(time, bool):
        raise JournalLineError("v, seq or t is missing or not a number")
    if not isinstance(time, (int, float)) or not isinstance(kind, str):
        raise JournalLineError("t or kind is missing or of another type")
    try:
        when = float(time)
    except OverflowError:
        raise JournalLineError("t is too large") from None
    if not isfinite(when):
        raise JournalLineError(f"t is {when}")
    cls = KINDS.get(kind)
    if cls is None:
        return Record(seq, when, None, (kind,))
    row.pop("shortened", None)
    return Record(seq, when, *_event_of(cls, row))


def _event_of(cls: type[Event], row: dict[str, Any]) -> tuple[Event, tuple[str, ...]]:
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name in row:
            values[field.name] = _checked(cls, field.name, str(field.type), row.pop(field.name))
        elif field.default is MISSING:
            raise JournalLineError(f"{cls.kind} lacks {field.name}")
    return cls(**values), tuple(sorted(str(name) for name in row))


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "bool | None": (bool, type(None)),
}


def _checked(cls: type[Event], name: str, declared: str, value: Any) -> Any:
    """*value* as the field's declared type; JSON lists become tuples."""
    if declared == "dict[str, str]" and isinstance(value, dict):
        return {str(k): str(v) for k, v in value.items()}
    if declared == "tuple[str, ...]" and isinstance(value, list):
        return tuple(str(v) for v in value)
    if declared.startswith("tuple[tuple[") and isinstance(value, list):
        length = declared.count("str")
        rows = [v for v in value if isinstance(v, list) and len(v) == length]
        return tuple(tuple(str(part) for part in row) for row in rows)
    allowed = _TYPES.get(declared, ())
    wrong_bool = isinstance(value, bool) and bool not in allowed
    if not isinstance(value, allowed) or wrong_bool:
        raise JournalLineError(f"{cls.kind}.{name} is not {declared}: {str(value)[:80]!r}")
    return value
