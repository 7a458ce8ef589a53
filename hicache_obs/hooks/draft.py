"""The draft builders' scope: everything built in it is a draft host pool."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from hicache_obs import draft_builder, faults, recorder
from hicache_obs.draft_builder import Recognition
from hicache_obs.events import DraftBuilderReported
from hicache_obs.hooks import scope
from hicache_obs.hooks.around import Call

_CONTROLLER = "sglang.srt.managers.cache_controller"


class _State:
    """What is known of the draft builder of this process."""

    def __init__(self) -> None:
        self.recognition: Recognition | None = None
        self.state = ""

    def report(self, state: str, **more: str) -> None:
        if state == self.state:
            return
        before, self.state = self.state, state
        recorder.get().emit(DraftBuilderReported(state=state, before=before, **more))


_state = _State()


def builder(call: Call) -> Iterator[None]:
    """The function that builds the draft host pool (and, from 0.5.13, registers it).

    SGLang calls it without HiCache too, and it returns at once.
    """
    worker = recorder.get().worker
    if worker.hicache or worker is recorder.UNKNOWN_WORKER:
        recognised(call.original)
    with scope.as_role(scope.DRAFT):
        yield


def recognised(function: Callable[..., Any]) -> Recognition:
    """Read the installed builder once and report its state."""
    if _state.recognition is None:
        found = draft_builder.recognise_function(function, registers=release_registers_draft())
        _state.recognition = found
        if found.code == "unrecognised":
            faults.count("draft_builder", f"the draft builder is left alone: {found.reason}")
        policy = recorder.get().config.draft_fix
        _state.report(draft_builder.state_of(found, policy), reason=found.reason)
    return _state.recognition


def release_registers_draft() -> bool:
    """Whether this SGLang registers draft pools with the storage backend (from 0.5.13).

    Told by the controller's class up to 0.5.18, later by the builder of draft sidecars.
    """
    controller = getattr(sys.modules.get(_CONTROLLER), "HiCacheController", None)
    if hasattr(controller, draft_builder.REGISTERING_METHOD):
        return True
    hybrid = sys.modules.get("sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller")
    later = getattr(hybrid, "HybridCacheController", None)
    return hasattr(later, "register_host_pool_entry")


def allocator_type(asked: object) -> object:
    """The type to give a draft pool that asked for *asked*."""
    rec = recorder.get()
    with rec.locked():
        target = rec.ledger.newest_pool(scope.TARGET)
    return draft_builder.substitute(
        _state.state, asked, target.requested_type if target is not None else None
    )


def applied(asked: object, given: object) -> None:
    """The type was put in place and SGLang answered."""
    _state.report("applied", asked=str(asked), given=str(given))
