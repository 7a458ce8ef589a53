"""Registration with Mooncake's transfer engine, and by the direct linker: at the native call.

SGLang's wrappers log a failure at debug level and go on (``MooncakeTransferEngine.register`` up to
0.5.18, ``batch_register`` and Ascend's in all releases). The native methods answer with the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hicache_obs import classify, faults, recorder
from hicache_obs.events import BufferRegistered, BufferUnregistered, CallEntered
from hicache_obs.hooks import scope
from hicache_obs.hooks.around import Call
from hicache_obs.ledger import FailureRow, RegistrationKey

_ENGINE, _LINKER = "transfer_engine", "direct_linker"
Buffers = Sequence[tuple[int, int]]


def register_memory(call: Call) -> Iterator[None]:
    """``TransferEngine.register_memory(address, bytes)``; answers 0 or a code of its own."""
    pair = (_number(call.argument(1, "")), _number(call.argument(2, "")))
    yield from _registering(call, "register_memory", _ENGINE, [pair])


def batch_register_memory(call: Call) -> Iterator[None]:
    """``TransferEngine.batch_register_memory(addresses, sizes)``: all of them or a code."""
    yield from _registering(call, "batch_register_memory", _ENGINE, _pairs(call))


def unregister_memory(call: Call) -> Iterator[None]:
    """``TransferEngine.unregister_memory(address)``."""
    yield
    _unregistered(call, [_number(call.argument(1, ""))])


def batch_unregister_memory(call: Call) -> Iterator[None]:
    """``TransferEngine.batch_unregister_memory(addresses)``."""
    yield
    _unregistered(call, [_number(address) for address in call.argument(1, "") or ()])


def direct_linker(_call: Call) -> Iterator[None]:
    """``MooncakeDirectLinker.register_buffers`` (0.5.20 and later): GPU memory, registered with
    the store natively. Raises RuntimeError at the first code that is not 0."""
    with scope.handing_over(scope.Registering(_LINKER, "none", "", "other")):
        yield


def store_register_buffer(call: Call) -> Iterator[None]:
    """``MooncakeDistributedStore.register_buffer(address, bytes)``; here only for the linker:
    what SGLang's own stores register is seen at ``MooncakeBaseStore.register_buffer``."""
    over = scope.registering()
    if over is None or over.api != _LINKER:
        yield
        return
    pair = (_number(call.argument(1, "")), _number(call.argument(2, "")))
    yield from _registering(call, "register_buffer", _LINKER, [pair])


def _pairs(call: Call) -> Buffers:
    addresses, sizes = call.argument(1, "") or (), call.argument(2, "") or ()
    return [(_number(a), _number(s)) for a, s in zip(addresses, sizes, strict=False)]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _registering(call: Call, api: str, mode: str, buffers: Buffers) -> Iterator[None]:
    rec = recorder.get()
    if not rec.worker.hicache and not rec.started:
        yield
        return
    address, size = (buffers[0][0] if buffers else 0), sum(size for _, size in buffers)
    with rec.locked():
        owner = rec.ledger.pool_at(address)
        overlaps = any(rec.ledger.registered_overlap(*pair) for pair in buffers)
    key = RegistrationKey(mode, *(owner.key if owner else ("none", "", "other")))
    number = rec.next_call()
    rec.emit(
        CallEntered(
            call=number,
            api=api,
            role=key.role,
            pool=key.pool,
            bytes=size,
            since=rec.now(),
            mode=mode,
            allocator=key.allocator,
        )
    )
    yield
    code = "" if call.error is not None else str(call.result or 0)
    failed = call.failed or code not in ("", "0")
    cause = ""
    if failed:
        cause = classify.engine_cause(code, buffers, overlaps)
        _say(key, api, size, code, cause)
        if call.error is not None:
            rec.blame(call.error, "registration", cause)
    with rec.locked():
        mended = _note(rec, key, buffers, failed=failed, row=(code, cause))
        total = rec.ledger.registered_bytes(key)
    rec.emit(
        BufferRegistered(
            call=number,
            api=api,
            mode=mode,
            role=key.role,
            pool=key.pool,
            allocator=key.allocator,
            bytes=size,
            address=hex(address),
            code=code,
            cause=cause,
            registered_bytes=total,
            mended=mended,
            **call.outcome | ({"outcome": "failure"} if failed else {}),
        )
    )


def _note(
    rec: recorder.Recorder,
    key: RegistrationKey,
    buffers: Buffers,
    *,
    failed: bool,
    row: tuple[str, str],
) -> tuple[FailureRow, ...]:
    """Into the ledger; the failures that this success ends, when no other buffer has failed."""
    ledger, addresses = rec.ledger, {address for address, _ in buffers}
    if failed:
        ledger.failed_buffers |= addresses
        ledger.add_failure(
            "registration", key.role, key.pool, FailureRow(key.mode, key.allocator, *row)
        )
        return ()
    for address, size in buffers:
        ledger.add_registration(address, size, key)
    before = bool(ledger.failed_buffers)
    ledger.failed_buffers -= addresses
    if before and not ledger.failed_buffers:
        return ledger.mend("registration", key.role, key.pool)
    return ()


def _say(key: RegistrationKey, api: str, size: int, code: str, cause: str) -> None:
    faults.logger.error(
        "hicache-obs: %s of %d bytes (%s, role %s) failed: code %s, cause %s; SGLang may go on",
        *(api, size, key.mode, key.role, code or "none", cause),
    )


def _unregistered(call: Call, addresses: Sequence[int]) -> None:
    rec = recorder.get()
    if call.error is not None or call.result or not rec.started:
        return
    with rec.locked():
        gone = [
            (key, size, rec.ledger.registered_bytes(key))
            for key, size in rec.ledger.remove_registrations(addresses)
        ]
    for key, size, total in gone:
        of_key = key._asdict()
        rec.emit(BufferUnregistered(**of_key, bytes=size, registered_bytes=total))
