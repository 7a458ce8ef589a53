"""The wrapper of every hook: it runs an observer around the original and changes nothing else.

An observer is a generator function. It gets a ``Call``, does what comes before, yields once
while the original runs, and finds result or error in the ``Call`` afterwards. Whatever goes
wrong in it is counted; the original's return value, exception object and traceback go through.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hicache_obs import faults


class Call:
    """One call of a hooked function. Observers may replace ``args`` and ``kwargs`` beforehand."""

    __slots__ = ("args", "duration_s", "error", "kwargs", "original", "result")

    def __init__(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.original = original
        self.args = args
        self.kwargs = kwargs
        self.result: Any = None
        self.error: BaseException | None = None
        self.duration_s = 0.0

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by keyword, else by position, else *default*."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else default

    def named(self, name: str) -> Any:
        """The argument of the original's parameter *name*, however it was given, else None."""
        if name in self.kwargs:
            return self.kwargs[name]
        code = getattr(inspect.unwrap(self.original), "__code__", None)
        names = code.co_varnames[: code.co_argcount] if code is not None else ()
        return self.argument(names.index(name), name) if name in names else None

    @property
    def failed(self) -> bool:
        """Whether it raised an error. Ctrl-C and an exit that pass through are none."""
        return isinstance(self.error, Exception)

    @property
    def message(self) -> str:
        """What its exception says, "" without one."""
        return "" if self.error is None else faults.text_of(self.error)

    @property
    def outcome(self) -> dict[str, Any]:
        """The fields of ``events.Outcome``."""
        if self.error is None:
            return {"outcome": "success", "duration_s": self.duration_s}
        return {
            "outcome": "failure" if self.failed else "interrupted",
            "duration_s": self.duration_s,
            "error_type": type(self.error).__name__,
            "error": self.message,
        }


Observer = Callable[[Call], Iterator[None]]


class _Active(threading.local):
    def __init__(self) -> None:
        self.keys: set[int] = set()


def around(point: str, observer: Observer | None = None) -> Callable[..., Any]:
    """An AROUND hook for SGLang's HookRegistry that runs the observer of *point*.

    Observers are imported at the first call: a process that never builds a host pool pays
    nothing for them.

    Two wrappers of ours on one function (a nested ``apply_hooks`` can do that) observe once: a
    call for an object, or for a function's first argument, that is already being observed goes
    straight to the original.
    """
    active = _Active()

    def hook(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        key = id(args[0]) if args else 0
        if key in active.keys:
            return original(*args, **kwargs)
        call = Call(original, args, dict(kwargs))
        active.keys.add(key)
        try:
            steps = _before(point, observer or _observer(point), call)
            if steps is None:
                call.args, call.kwargs = args, kwargs
            started = time.perf_counter()
            try:
                result = call.result = original(*call.args, **call.kwargs)
            except BaseException as error:
                call.duration_s = time.perf_counter() - started
                call.error = error
                _after(point, steps)
                raise
            call.duration_s = time.perf_counter() - started
            _after(point, steps)
            return result
        finally:
            active.keys.discard(key)
            call.error = None

    hook.__name__ = f"hicache_obs_{point}"
    return hook


def _observer(point: str) -> Observer | None:
    try:
        from hicache_obs.hooks.observers import OBSERVERS

        return OBSERVERS[point]
    except Exception as error:  # noqa: BLE001 - ours; SGLang's call goes on
        faults.count("observers", error)
        return None


def _before(point: str, observer: Observer | None, call: Call) -> Iterator[None] | None:
    if observer is None:
        return None
    try:
        steps = observer(call)
        next(steps)
    except Exception as error:  # noqa: BLE001 - ours; SGLang's call goes on as it came
        faults.count(f"hook_{point}", error)
        return None
    return steps


def _after(point: str, steps: Iterator[None] | None) -> None:
    if steps is None:
        return
    try:
        next(steps, None)
    except Exception as error:  # noqa: BLE001 - ours; SGLang's outcome stands
        faults.count(f"hook_{point}", error)
