"""Registration with Mooncake's transfer engine, and by the direct linker: at the native call.

SGLang's wrappers log a failure at debug level and go on (``MooncakeTransferEngine.register`` up to
0.5.18, ``batch_register`` and Ascend's in all releases). The native methods answer with the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hicache_obs import classify, faults, recorder
from hicache_obs.events import BufferUnregistered
from hicache_obs.hooks import registered, scope
from hicache_obs.hooks.around import Call
from hicache_obs.hooks.registered import Buffers
from hicache_obs.ledger import RegistrationKey

_ENGINE, _LINKER = "transfer_engine", "direct_linker"


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
    with rec.locked():
        owner = rec.ledger.pool_at(buffers[0][0]) if buffers else None
        overlaps = any(rec.ledger.registered_overlap(*pair) for pair in buffers)
    key = RegistrationKey(mode, *(owner.key if owner else ("none", "", "other")))
    number = registered.entered(rec, api, key, sum(size for _, size in buffers))
    yield
    code = "" if call.error is not None else str(call.result or 0)
    cause = ""
    if call.failed or code not in ("", "0"):
        cause = classify.engine_cause(code, buffers, overlaps)
        _say(key, api, buffers, code, cause)
    mends = call.error is None and _last_refused_is_taken(rec, buffers, failed=bool(cause))
    registered.ended(
        rec, call, key, buffers, number=number, api=api, code=code, cause=cause, mends=mends
    )


def _last_refused_is_taken(rec: recorder.Recorder, buffers: Buffers, *, failed: bool) -> bool:
    """Whether no buffer is refused any more that was: one that is taken says nothing of others."""
    addresses = {address for address, _ in buffers}
    with rec.locked():
        refused = rec.ledger.failed_buffers
        before = bool(refused)
        if failed:
            refused |= addresses
        else:
            refused -= addresses
        return before and not refused


def _say(key: RegistrationKey, api: str, buffers: Buffers, code: str, cause: str) -> None:
    size = sum(size for _, size in buffers)
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
        rec.emit(BufferUnregistered(**key._asdict(), bytes=size, registered_bytes=total))
