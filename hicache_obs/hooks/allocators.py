"""Allocators: which one SGLang chose, and every segment that one returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from hicache_obs import classify, draft_builder, recorder
from hicache_obs.events import AllocatorChosen, CallEntered, SegmentAllocated
from hicache_obs.hooks import draft, limits, memory, scope
from hicache_obs.hooks.around import Call
from hicache_obs.ledger import Segment


def choice(call: Call) -> Iterator[None]:
    """``get_allocator_from_storage(allocator_type)``; the draft fix is applied here.

    SGLang answers any type without an allocator of its own with the default one, and falls
    back with one warning when a vendor's library cannot be imported.
    """
    asked = call.argument(0, "allocator_type")
    given = asked
    if scope.role() == scope.DRAFT:
        given = draft.allocator_type(asked)
        if given is not asked:
            if "allocator_type" in call.kwargs:
                call.kwargs = {**call.kwargs, "allocator_type": given}
            else:
                call.args = (given, *call.args[1:])
    build = scope.build()
    yield
    if given is not asked and call.error is None:
        draft.applied(asked, given)
    actual = classify.allocator_label(type(call.result).__name__) if call.error is None else ""
    requested, reason = type_label(given), ""
    if call.error is not None:
        reason = "exception" if call.failed else ""
    elif _has_allocator_for(call.original, given):
        reason = classify.fallback_reason(requested, actual)
    if build is not None:
        build.requested, build.requested_type, build.allocator = requested, given, actual
        build.fallback = reason
    role, pool = (build.role, build.pool) if build else (scope.role(), "")
    recorder.get().emit(
        AllocatorChosen(role=role, pool=pool, requested=requested, actual=actual, reason=reason)
    )


def _has_allocator_for(choose: Callable[..., Any], allocator_type: object) -> bool:
    """Whether this release's ``get_allocator_from_storage`` names the type at all ("mori" came
    with 0.5.15, "shm" with 0.5.18): one that it does not know gets the default by design."""
    code = getattr(inspect.unwrap(choose), "__code__", None)
    return code is None or allocator_type in code.co_consts


def type_label(allocator_type: object) -> str:
    """An allocator type as a label; SGLang's None and "default" are both ``default``."""
    if allocator_type in draft_builder.DEFAULT_TYPES:
        return "default"
    return str(allocator_type)[:64]


def allocate(call: Call) -> Iterator[None]:
    """``HostTensorAllocator.allocate(dims, dtype, device)`` and its subclasses.

    SGLang up to 0.5.22 does not check Mooncake's allocation for a null pointer: a success at
    address 0 is told as a failure here, and SGLang's outcome stands.
    """
    rec = recorder.get()
    allocator = classify.allocator_label(type(call.args[0]).__name__)
    build = scope.build()
    role, pool = (build.role, build.pool) if build else (scope.role(), "")
    size = memory.requested_bytes(call.argument(1, "dims"), call.argument(2, "dtype"))
    number = rec.next_call()
    rec.emit(
        CallEntered(
            call=number,
            api="allocate",
            role=role,
            pool=pool,
            bytes=size,
            since=rec.now(),
            allocator=allocator,
            **limits.nearest()._asdict(),
        )
    )
    yield
    outcome, address, reason = call.outcome, 0, ""
    if call.error is None:
        pair = memory.address_and_size(call.result)
        if pair is not None:
            address, size = pair
            if address == 0 and size > 0:
                outcome, reason = {**outcome, "outcome": "failure"}, "null_pointer"
            with rec.locked():
                rec.ledger.add_segment(Segment(address, size, allocator, role, pool))
            if build is not None and reason:
                build.reason = reason
            elif build is not None:
                build.segments.append((address, size, allocator))
    elif call.failed:
        reason = classify.allocation_reason(type(call.error).__name__, call.message)
    rec.emit(
        SegmentAllocated(
            call=number,
            role=role,
            pool=pool,
            allocator=allocator,
            bytes=size,
            address=hex(address),
            reason=reason,
            **outcome,
        )
    )
