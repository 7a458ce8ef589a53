"""The wrapper of every hook: it observes, and the outcome stays what it was."""

from __future__ import annotations

import functools
import gc
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hicache_obs.hooks.around import Call, Observer, around


def hooked(
    original: Callable[..., Any], observer: Observer, hook: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """*original* as SGLang's HookRegistry wraps it."""
    used = hook or around("test", observer)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return used(original, *args, **kwargs)

    return wrapper


class Seen:
    """An observer that notes what it saw."""

    def __init__(self) -> None:
        self.entered: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.outcomes: list[str] = []
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> Iterator[None]:
        self.entered.append((call.args, dict(call.kwargs)))
        yield
        self.outcomes.append(call.outcome["outcome"])
        self.calls.append(call)


class BrokenError(Exception):
    pass


def breaks_before(call: Call) -> Iterator[None]:
    raise BrokenError("before")
    yield


def breaks_after(call: Call) -> Iterator[None]:
    yield
    raise BrokenError("after")


def never_yields(call: Call) -> Iterator[None]:
    return iter(())


def is_no_generator(call: Call) -> Iterator[None]:
    return None  # type: ignore[return-value]


def yields_twice(call: Call) -> Iterator[None]:
    yield
    yield


BAD = [breaks_before, breaks_after, never_yields, is_no_generator]
bad = pytest.mark.parametrize("observer", BAD, ids=lambda observer: observer.__name__)


# The outcome


def test_the_result_is_the_same_object() -> None:
    result = object()
    seen = Seen()
    assert hooked(lambda: result, seen)() is result
    assert seen.outcomes == ["success"]
    assert seen.calls[0].result is result


def test_the_exception_is_the_same_object_with_its_frames() -> None:
    error = RuntimeError("code: -1")

    def inner() -> None:
        raise error

    def outer() -> None:
        inner()

    seen = Seen()
    with pytest.raises(RuntimeError) as raised:
        hooked(outer, seen)()
    assert raised.value is error
    assert error.__context__ is None
    assert error.__cause__ is None
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-2:] == ["outer", "inner"]
    assert seen.outcomes == ["failure"]


def test_cause_and_context_stay() -> None:
    def fail() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as raised:
        hooked(fail, breaks_after)()
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.__context__ is raised.value.__cause__


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_any_exception_passes(kind: type[BaseException]) -> None:
    error = kind("x")

    def fail() -> None:
        raise error

    seen = Seen()
    with pytest.raises(kind) as raised:
        hooked(fail, seen)()
    assert raised.value is error
    assert seen.outcomes == ["failure" if issubclass(kind, Exception) else "interrupted"]


def test_no_reference_to_the_exception_stays() -> None:
    def fail() -> None:
        raise BrokenError("x")

    kept = Seen()
    function = hooked(fail, kept)
    gc.collect()
    gc.disable()
    try:
        try:
            function()
        except BrokenError as error:
            gone = weakref.ref(error)
        assert gone() is None
    finally:
        gc.enable()
    assert kept.calls[0].error is None


@bad
def test_an_observer_that_breaks_changes_no_result(
    observer: Observer, counted: Callable[[], dict[str, int]]
) -> None:
    result = object()
    assert hooked(lambda: result, observer)() is result
    assert counted() == {"hook_test": 1}


@bad
def test_an_observer_that_breaks_changes_no_exception(
    observer: Observer, counted: Callable[[], dict[str, int]]
) -> None:
    error = RuntimeError("x")

    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError) as raised:
        hooked(fail, observer)()
    assert raised.value is error
    assert error.__context__ is None
    assert counted() == {"hook_test": 1}


@bad
def test_the_original_runs_once_whatever_the_observer_does(observer: Observer) -> None:
    runs: list[int] = []
    hooked(lambda: runs.append(1), observer)()
    assert runs == [1]


def test_an_observer_that_yields_twice_is_left(counted: Callable[[], dict[str, int]]) -> None:
    assert hooked(lambda: 5, yields_twice)() == 5
    assert counted() == {}


def test_an_observer_cannot_change_the_result() -> None:
    def meddles(call: Call) -> Iterator[None]:
        yield
        call.result = "changed"

    assert hooked(lambda: "original", meddles)() == "original"


def test_an_observer_cannot_swallow_the_exception() -> None:
    def meddles(call: Call) -> Iterator[None]:
        yield
        call.error = None

    def fail() -> None:
        raise BrokenError("x")

    with pytest.raises(BrokenError):
        hooked(fail, meddles)()


# Arguments


def give(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def test_arguments_go_through() -> None:
    seen = Seen()
    assert hooked(give, seen)(1, 2, x=3) == ((1, 2), {"x": 3})
    assert seen.entered == [((1, 2), {"x": 3})]


@pytest.mark.parametrize("name", ["original", "point", "observer", "args", "kwargs", "call", "key"])
def test_a_keyword_argument_of_any_name(name: str) -> None:
    seen = Seen()
    assert hooked(give, seen)(1, **{name: 2}) == ((1,), {name: 2})
    assert seen.entered == [((1,), {name: 2})]


def test_an_observer_may_replace_arguments() -> None:
    def replaces(call: Call) -> Iterator[None]:
        call.args = ("new", *call.args[1:])
        call.kwargs = {**call.kwargs, "allocator_type": "mooncake"}
        yield

    function = hooked(give, replaces)
    assert function("old", 2) == (("new", 2), {"allocator_type": "mooncake"})


def test_replaced_arguments_are_put_back_when_the_observer_breaks() -> None:
    def replaces(call: Call) -> Iterator[None]:
        call.args, call.kwargs = ("new",), {"x": "new"}
        raise BrokenError
        yield

    assert hooked(give, replaces)("old", x="old") == (("old",), {"x": "old"})


def test_arguments_changed_in_place_are_put_back_when_the_observer_breaks() -> None:
    def changes(call: Call) -> Iterator[None]:
        call.kwargs["x"] = "new"
        raise BrokenError
        yield

    assert hooked(give, changes)(x="old") == ((), {"x": "old"})


def test_argument_by_keyword_then_position_then_default() -> None:
    call = Call(give, ("self", 1), {"b": 2})
    assert call.argument(1, "a") == 1
    assert call.argument(1, "b") == 2
    assert call.argument(5, "c") is None
    assert call.argument(5, "c", "d") == "d"


# What the observer is told


def test_the_duration_is_the_originals() -> None:
    told: list[float] = []
    ready = threading.Event()

    def observer(call: Call) -> Iterator[None]:
        yield
        told.append(call.outcome["duration_s"])

    hooked(lambda: ready.wait(0.05), observer)()
    assert 0.05 <= told[0] < 1


def test_the_outcome_of_a_failure() -> None:
    told: list[dict[str, Any]] = []

    def observer(call: Call) -> Iterator[None]:
        yield
        told.append(call.outcome)

    def fail() -> None:
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        hooked(fail, observer)()
    assert told[0].pop("duration_s") > 0
    assert told == [{"outcome": "failure", "error_type": "ValueError", "error": "no memory"}]


# Nesting


def test_two_wrappers_observe_once() -> None:
    seen = Seen()
    hook = around("test", seen)
    twice = hooked(hooked(give, seen, hook), seen, hook)
    assert twice("self", x=1) == (("self",), {"x": 1})
    assert len(seen.entered) == 1


def test_two_wrappers_observe_a_call_without_arguments_once() -> None:
    seen = Seen()
    hook = around("test", seen)
    hooked(hooked(give, seen, hook), seen, hook)()
    assert len(seen.entered) == 1


def test_a_call_inside_for_another_object_is_observed() -> None:
    seen = Seen()
    outer, inner = object(), object()

    def build(pool: object) -> None:
        if pool is outer:
            function(inner)

    function = hooked(build, seen)
    function(outer)
    assert [args for args, _ in seen.entered] == [(outer,), (inner,)]


def test_the_next_call_for_the_same_object_is_observed() -> None:
    seen = Seen()
    function = hooked(give, seen)
    function("self")
    function("self")
    assert len(seen.entered) == 2


def test_the_call_after_a_failure_is_observed() -> None:
    seen = Seen()

    def fail(_: object) -> None:
        raise BrokenError

    function = hooked(fail, seen)
    for _ in range(2):
        with pytest.raises(BrokenError):
            function("self")
    assert seen.outcomes == ["failure"] * 2


def test_two_threads_at_once_are_both_observed() -> None:
    seen = Seen()
    both = threading.Barrier(2, timeout=5)
    shared = object()

    def meet(_: object) -> int:
        return both.wait()

    function = hooked(meet, seen)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(function(shared))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1]
    assert seen.outcomes == ["success"] * 2


def test_threads_do_not_mix_outcomes() -> None:
    wrong: list[object] = []

    def observer(call: Call) -> Iterator[None]:
        given = call.args[0]
        yield
        if call.result is not given:
            wrong.append(given)

    function = hooked(lambda given: given, observer)

    def work() -> None:
        for _ in range(300):
            given = object()
            if function(given) is not given:
                wrong.append(given)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Observers by point


def test_a_point_without_an_observer_changes_nothing(
    counted: Callable[[], dict[str, int]],
) -> None:
    hook = around("no_such_point")
    assert hook(give, 1, x=2) == ((1,), {"x": 2})
    assert counted() == {"observers": 1}


def test_observers_are_imported_at_the_first_call(run_python: Callable[..., str]) -> None:
    script = """
import sys
from hicache_obs.hooks.around import around
hook = around("worker")
print("hicache_obs.hooks.observers" in sys.modules, "hicache_obs.recorder" in sys.modules)
"""
    assert run_python(script).strip() == "False False"
