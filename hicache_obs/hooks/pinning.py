"""Page-locking of host pools: per pool the bytes, the chunks and the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hicache_obs import classify, recorder
from hicache_obs.events import CallEntered, PagesPinned
from hicache_obs.hooks import limits, memory, scope
from hicache_obs.hooks.around import Call
from hicache_obs.hooks.cudart import watched_by
from hicache_obs.ledger import FailureRow


class _Chunks:
    """The ``cudaHostRegister`` calls of one page-locking."""

    def __init__(self) -> None:
        self.count = 0
        self.code = ""

    def entered(self, address: int, size: int) -> None:
        self.count += 1

    def returned(self, address: int, size: int, code: int) -> None:
        self.code = str(code)


def host_register(call: Call) -> Iterator[None]:
    """``_cuda_host_register(buffer[, granularity])`` (0.5.14 and later).

    Raises RuntimeError in SGLang with the cudaError in its text ("rc=1"), or whatever is raised
    while that text is made; from 0.5.20 on it pins in chunks and rolls back on failure.
    """
    rec = recorder.get()
    address, size = memory.address_and_size(call.argument(0, "buffer")) or (0, 0)
    number, chunks = _entered(rec, size), _Chunks()
    with watched_by(chunks):
        yield
    code = chunks.code
    if call.error is not None and code in ("", "0"):
        code = classify.code_in(call.message)
    told = {"call": number, "code": code or "0", "chunks": chunks.count}
    _pinned(rec, call.outcome, (address, size), **told)
    if call.error is not None and call.failed:
        rec.blame(call.error, "pinning", "pin")


class _Inline:
    """The one ``cudaHostRegister`` of SGLang up to 0.5.13, told as it happens."""

    def __init__(self) -> None:
        self._number = 0

    def entered(self, address: int, size: int) -> None:
        self._number = _entered(recorder.get(), size)

    def returned(self, address: int, size: int, code: int) -> None:
        outcome = {"outcome": "failure" if code else "success"}
        _pinned(recorder.get(), outcome, (address, size), call=self._number, code=str(code))


def inline(call: Call) -> Iterator[None]:
    """``alloc_with_host_register`` up to 0.5.13, which allocates and pins.

    0.5.11 and 0.5.12 do not look at the code: where it is not 0 the pool is pageable, and
    transfers may read stale data. 0.5.13 raises.
    """
    with watched_by(_Inline()):
        yield
    build = scope.build()
    if call.error is not None and call.failed and build is not None and build.pin_code:
        recorder.get().blame(call.error, "pinning", "pin")


def by_torch(rec: recorder.Recorder, call: Call, address: int, size: int) -> None:
    """Memory that an allocation page-locked by itself (torch's ``pin_memory``, hipHostMalloc)."""
    code = "0" if call.error is None else classify.code_in(call.message)
    _pinned(rec, call.outcome, (address, size), call=rec.next_call(), code=code)


def _entered(rec: recorder.Recorder, size: int) -> int:
    number = rec.next_call()
    role, pool = scope.where()
    rec.emit(
        CallEntered(
            call=number,
            api="pin",
            role=role,
            pool=pool,
            bytes=size,
            since=rec.now(),
            allocator=scope.allocator(),
            **limits.nearest()._asdict(),
        )
    )
    return number


def _pinned(
    rec: recorder.Recorder, outcome: Mapping[str, Any], chunk: tuple[int, int], **told: Any
) -> None:
    """One page-locking of *chunk*, ``(address, bytes)``; *told* are fields of ``PagesPinned``."""
    address, size = chunk
    build = scope.build()
    role, pool = scope.where()
    allocator = scope.allocator()
    failed = outcome["outcome"] == "failure"
    if failed and build is not None:
        build.pin_code = told["code"] or "unknown"
    with rec.locked():
        if failed:
            row = FailureRow("", allocator, told["code"], "pin")
            rec.ledger.add_failure("pinning", role, pool, row)
        elif outcome["outcome"] == "success":
            rec.ledger.add_pin(address, size, role, pool)
        pinned = rec.ledger.pinned_bytes(role, pool)
    of_pool: dict[str, Any] = {"role": role, "pool": pool, "allocator": allocator}
    rec.emit(PagesPinned(bytes=size, pinned_bytes=pinned, **of_pool, **told, **outcome))
