"""Events as journal lines and back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example as tried
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_obs import wire
from hicache_obs.events import (
    KINDS,
    BufferRegistered,
    CallEntered,
    Event,
    HooksReported,
    JournalLost,
    WorkerFailed,
    WorkerStarting,
)

CLASSES = sorted(KINDS.values(), key=lambda cls: cls.kind)
by_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.kind)

Leaves = dict[object, st.SearchStrategy[Any]]
TAME: Leaves = {
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=24),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
}

ANY_TEXT = st.text(st.characters(), max_size=300) | st.sampled_from(
    ["x" * 10_000_000, "\U0001f600" * 100_000, "\ud800" * 9000, "\n" * 9000, '"\\' * 9000, "\0\r"]
)
WILD: Leaves = {
    **TAME,
    str: ANY_TEXT,
    int: st.integers(-(2**200), 2**200),
    float: st.floats(),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def values_of(hint: Any, leaves: Leaves) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint in leaves:
        return leaves[hint]
    args = get_args(hint)
    inner = [values_of(arg, leaves) for arg in args if arg is not Ellipsis]
    if get_origin(hint) is dict:
        return st.dictionaries(*inner, max_size=8)
    if get_origin(hint) is tuple:
        endless = Ellipsis in args
        return st.lists(inner[0], max_size=8).map(tuple) if endless else st.tuples(*inner)
    return st.one_of(inner)


def events_of(cls: type[Event], leaves: Leaves) -> st.SearchStrategy[Event]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: values_of(hints[f.name], leaves) for f in fields(cls)})


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts_in([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_in(item)


def row_of(event: Event) -> dict[str, Any]:
    return dict(json.loads(wire.to_line(event, 1, 0.0)))


def line_of(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def _no_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@by_class
@settings(max_examples=30)
@given(data=st.data(), seq=st.integers(0, 2**40), time=st.floats(0, 2**33))
def test_round_trip(cls: type[Event], data: st.DataObject, seq: int, time: float) -> None:
    event = data.draw(events_of(cls, TAME))
    record = wire.from_line(wire.to_line(event, seq, time))
    if hasattr(event, "error"):
        event = replace(event, error=wire.scrub(event.error))
    assert record == wire.Record(seq, round(time, 6), event, ())


@by_class
@settings(max_examples=12)
@given(data=st.data())
def test_a_line_is_one_short_json_object(cls: type[Event], data: st.DataObject) -> None:
    line = wire.to_line(data.draw(events_of(cls, WILD)), 7, 1.25)
    assert len(line) <= 8192
    assert line.index(b"\n") == len(line) - 1
    row = json.loads(line, parse_constant=_no_json)
    assert (row["v"], row["seq"], row["t"], row["kind"]) == (1, 7, 1.25, cls.kind)


@by_class
@settings(max_examples=12)
@given(data=st.data())
def test_what_was_written_can_be_read(cls: type[Event], data: st.DataObject) -> None:
    finite = {**WILD, float: TAME[float]}
    event = data.draw(events_of(cls, finite))
    assert isinstance(wire.from_line(wire.to_line(event, 1, 0.0)).event, cls)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_can_be_read(example: Callable[..., Event], number: float) -> None:
    line = wire.to_line(example(CallEntered, since=number), 1, 0.0)
    assert isinstance(wire.from_line(line).event, CallEntered)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_a_time_that_is_no_number(example: Callable[..., Event], number: str) -> None:
    line = wire.to_line(example(CallEntered), 1, 0.0)
    broken = line.replace(b'"t":0.000000', f'"t":{number}'.encode())
    with pytest.raises(wire.JournalLineError, match="t is"):
        wire.from_line(broken)


def test_a_label_is_cut(example: Callable[..., Event]) -> None:
    row = row_of(example(WorkerStarting, model_name="m" * 1000, extra_labels={"k": "v" * 1000}))
    assert len(row["extra_labels"]["k"]) == wire.MAX_LABEL
    assert len(row["model_name"]) == wire.MAX_LABEL


@pytest.mark.parametrize("behind", ["", "e" * 1000, "größe" * 200])
def test_an_error_text_is_scrubbed_and_cut(example: Callable[..., Event], behind: str) -> None:
    told = row_of(example(WorkerFailed, error="password=hunter2 " + behind))["error"]
    assert told == ("password=*** " + behind)[:500]


@by_class
@settings(max_examples=20)
@given(data=st.data())
def test_texts_that_were_read_can_be_encoded(cls: type[Event], data: st.DataObject) -> None:
    odd = {**TAME, str: st.sampled_from(["\ud800", "a\udcffb", "\ud83d\ude00"])}
    event = wire.from_line(wire.to_line(data.draw(events_of(cls, odd)), 1, 0.0)).event
    for text in texts_in(list(vars(event).values())):
        text.encode()


def test_lists_are_cut(example: Callable[..., Event]) -> None:
    row = row_of(example(HooksReported, missing=tuple(map(str, range(1000)))))
    assert row["missing"] == [str(number) for number in range(wire.MAX_ITEMS)]


def test_a_line_cut_to_fit_keeps_its_outcome(example: Callable[..., Event]) -> None:
    rows = (("\U0001f600" * 256, "\U0001f600" * 256),) * 64
    line = wire.to_line(example(BufferRegistered, outcome="success", mended=rows), 1, 0.0)
    assert json.loads(line)["shortened"] is True
    event = wire.from_line(line).event
    assert isinstance(event, BufferRegistered)
    assert not event.failed


def test_cutting_a_line_is_no_unknown_field(example: Callable[..., Event]) -> None:
    event = example(HooksReported, missing=("x" * 256,) * 64)
    record = wire.from_line(wire.to_line(event, 1, 0.0))
    assert record.unknown == ()
    assert isinstance(record.event, HooksReported)
    assert record.event.missing


@by_class
def test_a_field_of_a_newer_writer_is_named(
    example: Callable[..., Event], cls: type[Event]
) -> None:
    event = example(cls)
    row = row_of(event) | {"numa_node": 1, "a_new_one": [2]}
    assert wire.from_line(line_of(row)) == wire.Record(1, 0.0, event, ("a_new_one", "numa_node"))


def test_a_kind_of_a_newer_writer_is_no_error() -> None:
    line = b'{"v":2,"seq":3,"t":4.5,"kind":"pool_moved","from":"a"}\n'
    assert wire.from_line(line) == wire.Record(3, 4.5, None, ("pool_moved",))


@by_class
def test_a_missing_field_is_named(
    example: Callable[..., Event],
    required_fields: Callable[[type[Event]], list[str]],
    cls: type[Event],
) -> None:
    row = row_of(example(cls))
    for name in required_fields(cls):
        rest = {key: value for key, value in row.items() if key != name}
        with pytest.raises(wire.JournalLineError, match=rf"^{cls.kind} lacks {name}$"):
            wire.from_line(line_of(rest))


WRONG: dict[object, list[Any]] = {
    str: [1, None, True, ["a"]],
    int: ["1", 1.5, True, None],
    float: ["1.5", True, [1.5]],
    bool: [1, "true", None],
    dict: [["a"], "a", None],
    tuple: [{"a": "b"}, "ab", None],
    UnionType: [0, "none"],
}


@by_class
def test_a_field_of_another_type_is_named(example: Callable[..., Event], cls: type[Event]) -> None:
    row, hints = row_of(example(cls)), get_type_hints(cls)
    for name in (field.name for field in fields(cls)):
        for wrong in WRONG[get_origin(hints[name]) or hints[name]]:
            with pytest.raises(wire.JournalLineError, match=rf"^{cls.kind}\.{name} is not "):
                wire.from_line(line_of(row | {name: wrong}))


@pytest.mark.parametrize("wrong", [None, [], {}], ids=repr)
@pytest.mark.parametrize("key", ["v", "seq", "t", "kind"])
def test_a_bad_frame_is_an_error(example: Callable[..., Event], key: str, wrong: object) -> None:
    row = row_of(example(JournalLost))
    with pytest.raises(wire.JournalLineError):
        wire.from_line(line_of(row | {key: wrong}))


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"1", b"null", b"{}", b'"run"'])
def test_what_is_no_event_is_an_error(line: bytes) -> None:
    with pytest.raises(wire.JournalLineError):
        wire.from_line(line)


@given(st.binary(max_size=200))
@tried(b"")
@tried(b"[" * 100_000)
@tried(b'{"a":' * 100_000)
@tried(b"\xff\xfe{\x00}\x00")
@tried(b'{"v":1,"seq":1,"t":1' + b"0" * 400 + b',"kind":"journal_lost"}')
@tried(b'{"v":1,"seq":1,"t":' + b"9" * 5000 + b',"kind":"journal_lost"}')
@tried(b'{"v":1,"seq":1,"t":1,"kind":"journal_lost","lost":' + b"[" * 900 + b"]" * 900 + b"}")
def test_any_bytes_are_a_record_or_an_error(line: bytes) -> None:
    with suppress(wire.JournalLineError):
        assert isinstance(wire.from_line(line), wire.Record)


@given(cls=st.sampled_from(CLASSES), data=st.data(), value=JSON)
def test_any_value_in_a_field_is_a_record_or_an_error(
    example: Callable[..., Event], cls: type[Event], data: st.DataObject, value: object
) -> None:
    row = row_of(example(cls))
    row[data.draw(st.sampled_from(sorted(row)))] = value
    with suppress(wire.JournalLineError):
        assert isinstance(wire.from_line(line_of(row)), wire.Record)


def test_every_kind_has_its_class() -> None:
    assert all(cls.kind == kind for kind, cls in KINDS.items())
    subclasses = {cls for cls in _below(Event) if "kind" in vars(cls)}
    assert subclasses == set(KINDS.values())


def _below(cls: type[Event]) -> set[type[Event]]:
    found = set(cls.__subclasses__())
    return found.union(*map(_below, found)) if found else found
