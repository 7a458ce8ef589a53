"""What ``cudaHostRegister`` really answered: CUDA's runtime as SGLang sees it while it pins.

SGLang throws the code away (0.5.11 and 0.5.12), raises it inside a text (later), or raises
another error while it makes that text. So ``torch.cuda.cudart()`` is hooked, and while a host
pool is being page-locked it answers with a stand-in that hands every call on and notes what
``cudaHostRegister`` was given and returned. At all other times its answer goes through as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol

from hicache_obs import faults
from hicache_obs.hooks.scope import during


class Watch(Protocol):
    """Told of each ``cudaHostRegister(address, bytes, flags)``."""

    def entered(self, address: int, size: int) -> None: ...

    def returned(self, address: int, size: int, code: int) -> None: ...


_watch: ContextVar[Watch | None] = ContextVar("hicache_obs_cudart", default=None)


def watched_by(watch: Watch) -> AbstractContextManager[None]:
    return during(_watch, watch)


def cudart(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The hook on ``torch.cuda.cudart``."""
    runtime = original(*args, **kwargs)
    watch = _watch.get()
    return runtime if watch is None else _Watched(runtime, watch)


class _Watched:
    """CUDA's runtime, seen through a watch."""

    def __init__(self, runtime: Any, watch: Watch) -> None:
        self._runtime = runtime
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def cudaHostRegister(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 - CUDA's name
        self._tell(self._watch.entered, *args[:2])
        code = self._runtime.cudaHostRegister(*args, **kwargs)
        self._tell(self._watch.returned, *args[:2], code)
        return code

    def _tell(self, told: Callable[..., None], *numbers: Any) -> None:
        try:
            told(*(int(number) for number in numbers))
        except Exception as error:  # noqa: BLE001 - ours; SGLang's call stands
            faults.count("cudart", error)
