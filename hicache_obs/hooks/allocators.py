"""Allocators: which one SGLang chose, and every segment that one returned."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from hicache_obs import classify, draft_builder, recorder
from hicache_obs.events import AllocatorChosen, CallEntered, SegmentAllocated
from hicache_obs.hooks import draft, limits, memory, pinning, scope
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
    role, pool = scope.where()
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
    """``HostTensorAllocator.allocate(dims, dtype, device)`` and its subclasses."""
    allocator = classify.allocator_label(type(call.args[0]).__name__)
    size = memory.requested_bytes(call.argument(1, "dims"), call.argument(2, "dtype"))
    yield from _allocating(call, allocator, size)


def past_allocator(allocator: str, pins: bool) -> Callable[[Call], Iterator[None]]:
    """Functions ``(dims, dtype, ...)`` that give a pool memory without asking its allocator.

    ``alloc_with_pin_memory`` (NPU, MUSA, XPU: pool_host/common.py) has a fourth parameter
    ``pin_memory``; ``_alloc_hip_host_tensor`` (ROCm, 0.5.22 and later) always pins, and
    ``alloc_with_memfabric`` (NPU, 0.5.20 and later) maps memory of the driver's.
    """

    def observe(call: Call) -> Iterator[None]:
        pinned = pins and bool(call.argument(3, "pin_memory", True))
        size = memory.requested_bytes(call.argument(0, "dims"), call.argument(1, "dtype"))
        yield from _allocating(call, allocator if pinned else "other", size)
        if pinned:
            address, got = memory.address_and_size(call.result) or (0, size)
            pinning.by_torch(recorder.get(), call, address, got)

    return observe


def hugepages(call: Call) -> Iterator[None]:
    """``_alloc_hugepage``: SGLANG_HUGEPAGE_SIZE is set. OSError where the kernel has none free;
    SGLang logs one line and takes plain pages (mmap_allocator.py)."""
    yield
    if call.error is not None and call.failed:
        _fell_back_to_plain_pages("no_hugepages")


def hugepages_shm(call: Call) -> Iterator[None]:
    """``alloc_shm``: shared memory has no huge pages, whatever is asked for."""
    yield
    if call.error is None and os.environ.get("SGLANG_HUGEPAGE_SIZE", "").strip():
        _fell_back_to_plain_pages("shm")


def _fell_back_to_plain_pages(reason: str) -> None:
    role, pool = scope.where()
    chosen = {"requested": "hugepages", "actual": "plain_pages", "reason": reason}
    recorder.get().emit(AllocatorChosen(role=role, pool=pool, **chosen))


def _allocating(call: Call, allocator: str, size: int) -> Iterator[None]:
    """SGLang up to 0.5.22 does not check Mooncake's allocation for a null pointer: a success at
    address 0 is told as a failure here, and SGLang's outcome stands."""
    rec = recorder.get()
    build = scope.build()
    role, pool = scope.where()
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
