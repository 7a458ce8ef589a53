"""The vocabulary: which events SGLang waits for, and which must be on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields

import pytest

from hicache_obs.events import KINDS, Event, Outcome

CLASSES = sorted(KINDS.values(), key=lambda cls: cls.kind)
by_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.kind)


@by_class
def test_every_failure_is_durable_and_nothing_else(
    example: Callable[..., Event], cls: type[Event]
) -> None:
    assert not example(cls).durable
    if issubclass(cls, Outcome):
        failed = example(cls, outcome="failure")
        assert failed.durable
        assert isinstance(failed, Outcome)
        assert failed.failed


def test_what_names_a_hang_or_a_death_is_awaited() -> None:
    awaited = {cls.kind for cls in CLASSES if cls.awaited}
    assert {"run", "worker_starting", "worker_ready", "call_entered", "mismatch"} == awaited


@by_class
def test_an_event_never_changes(example: Callable[..., Event], cls: type[Event]) -> None:
    event = example(cls)
    with pytest.raises(FrozenInstanceError):
        setattr(event, fields(cls)[0].name, "x")


@by_class
def test_fields_do_not_clash_with_the_frame_of_a_line(cls: type[Event]) -> None:
    names = {field.name for field in fields(cls)}
    assert not names & {"v", "seq", "t", "kind", "shortened"}
