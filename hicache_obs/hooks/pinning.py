"""Page-locking of host pools: SGLang's ``_cuda_host_register`` (0.5.14 and later)."""

from __future__ import annotations

from collections.abc import Iterator

from hicache_obs import classify, recorder
from hicache_obs.events import CallEntered, PagesPinned
from hicache_obs.hooks import limits, memory, scope
from hicache_obs.hooks.around import Call


def host_register(call: Call) -> Iterator[None]:
    """``_cuda_host_register(buffer[, granularity])``.

    Raises RuntimeError in SGLang with the cudaError in its text ("rc=1"); from 0.5.20 on it
    pins in chunks and rolls back on failure.
    """
    rec, build = recorder.get(), scope.build()
    role, pool = (build.role, build.pool) if build else (scope.role(), "")
    address, size = memory.address_and_size(call.argument(0, "buffer")) or (0, 0)
    number = rec.next_call()
    allocator = build.allocator if build else "other"
    rec.emit(
        CallEntered(
            call=number,
            api="pin",
            role=role,
            pool=pool,
            bytes=size,
            since=rec.now(),
            allocator=allocator,
            **limits.nearest()._asdict(),
        )
    )
    yield
    code = "0"
    if call.error is not None:
        code = classify.code_in(call.message)
    if call.error is not None and call.failed:
        rec.blame(call.error, "pinning", "pin")
    with rec.locked():
        if call.error is None:
            rec.ledger.add_pin(address, size, role, pool)
        pinned = rec.ledger.pinned_bytes(role, pool)
    rec.emit(
        PagesPinned(
            call=number,
            role=role,
            pool=pool,
            allocator=allocator,
            bytes=size,
            code=code,
            pinned_bytes=pinned,
            **call.outcome,
        )
    )
