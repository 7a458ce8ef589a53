"""Registration of host pool buffers with a Mooncake store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hicache_obs import classify, faults, recorder
from hicache_obs.events import CallRefused, PoolRegistered
from hicache_obs.hooks import memory, peer, registered, scope, standing
from hicache_obs.hooks.around import Call
from hicache_obs.ledger import Provenance, RegistrationKey
from hicache_obs.sglang_pools import OTHER

_API = "register_buffer"


def anchor(call: Call) -> Iterator[None]:
    """``MooncakeStore.register_mem_pool_host(mem_pool_host)``: the target's anchor pool.

    A logical anchor has no ``kv_buffer``; SGLang returns without a registration.
    """
    host_pool = call.argument(1, "mem_pool_host")
    known = standing.known(host_pool)
    role, pool = (known.key.role, known.key.pool) if known else (scope.TARGET, OTHER)
    pool = "kv" if pool == OTHER else pool
    yield from _pool(call, host_pool, "register_mem_pool_host", role, pool)


def side_pool(call: Call) -> Iterator[None]:
    """``MooncakeStore.register_mem_host_pool_v2(host_pool, host_pool_name)``.

    For the KV anchor it is a no-op and counts nothing: ``register_mem_pool_host`` did it.
    """
    role, pool = scope.name_registered(call.argument(2, "host_pool_name"))
    if pool == "kv":
        yield
        return
    host_pool = call.argument(1, "host_pool")
    yield from _pool(call, host_pool, "register_mem_host_pool_v2", role, pool)


def _pool(call: Call, host_pool: Any, api: str, role: str, pool: str) -> Iterator[None]:
    rec, store = recorder.get(), call.args[0]
    role, pool, allocator = standing.name(host_pool, role, pool)
    over = scope.Registering(api=api, role=role, pool=pool, allocator=allocator)
    with scope.handing_over(over):
        yield
    if call.failed and not over.failed:
        _before_any_call(rec, call, store, over)
    if call.error is None and over.buffers == 0:
        return
    rec.emit(
        PoolRegistered(
            api=api,
            mode=mode_of(store),
            role=role,
            pool=pool,
            buffers=over.buffers,
            bytes=over.bytes,
            **call.outcome,
        )
    )


def _before_any_call(
    rec: recorder.Recorder, call: Call, store: Any, over: scope.Registering
) -> None:
    """SGLang raised while it looked for the pool's buffers: no native call was made."""
    cause = classify.registration_cause(
        mode=mode_of(store),
        code="",
        error_type=type(call.error).__name__,
        message=call.message,
        provenance=None if over.buffers == 0 else Provenance("exact", None),
    )
    key = RegistrationKey(mode_of(store), over.role, over.pool, over.allocator)
    number = rec.next_call()
    _emit(rec, call, key, number=number, pair=None, code="", cause=cause, api=over.api)


def buffer(call: Call) -> Iterator[None]:
    """``MooncakeBaseStore.register_buffer(tensor)``; raises RuntimeError with the native code.

    SGLang from 0.5.16 on returns at once for an empty tensor.
    """
    rec, store = recorder.get(), call.args[0]
    over = scope.registering() or scope.Registering(_API, "none", "", "other")
    pair = memory.address_and_size(call.argument(1, "tensor"))
    key = RegistrationKey(mode_of(store), over.role, over.pool, over.allocator)
    number = over.call = registered.entered(rec, _API, key, pair[1] if pair else 0)
    yield
    code, cause = "0", ""
    if call.failed:
        over.failed = True
        code = classify.code_in(call.message)
        try:
            cause = _diagnose(rec, call, store, over, pair)
        except Exception as error:  # noqa: BLE001 - the failure itself must be told
            faults.count("diagnose", error)
            cause = "unknown"
    elif call.error is not None:
        code = ""
    else:
        over.buffers += 1
        over.bytes += pair[1] if pair else 0
    _emit(rec, call, key, number=number, pair=pair, code=code, cause=cause, api=_API)


def _diagnose(
    rec: recorder.Recorder,
    call: Call,
    store: Any,
    over: scope.Registering,
    pair: tuple[int, int] | None,
) -> str:
    """The cause of a failed registration, from the exception and the ledger.

    Where the ledger finds no fault the store is asked (``health_check``, the only native call
    made) and its peer; what is known is in the journal before that.
    """
    mode, code = mode_of(store), classify.code_in(call.message)
    provenance, overlaps = None, False
    if pair is not None:
        with rec.locked():
            provenance = rec.ledger.provenance(*pair)
            overlaps = rec.ledger.registered_overlap(*pair)

    def cause(health: int | None, reachable: bool | None) -> str:
        return classify.registration_cause(
            mode=mode,
            code=code,
            error_type=type(call.error).__name__,
            message=call.message,
            provenance=provenance,
            overlaps=overlaps,
            size=pair[1] if pair else 0,
            health=health,
            reachable=reachable,
        )

    first = cause(None, None)
    if first not in ("ipc_or_remote_map", "transport"):
        return first
    rec.emit(
        CallRefused(
            call=over.call,
            api=_API,
            mode=mode,
            role=over.role,
            pool=over.pool,
            allocator=over.allocator,
            bytes=pair[1] if pair else 0,
            code=code,
            cause=first,
            **call.outcome,
        )
    )
    return cause(*peer.ask(store, mode))


def _emit(
    rec: recorder.Recorder,
    call: Call,
    key: RegistrationKey,
    *,
    number: int,
    pair: tuple[int, int] | None,
    code: str,
    cause: str,
    api: str,
) -> None:
    buffer = pair or (0, 0)
    if cause:
        faults.logger.error(
            "hicache-obs: registration of the %s host pool (pool %s, allocator %s, %d bytes) "
            "failed: code %s, cause %s",
            *(key.role, key.pool, key.allocator, buffer[1], code or "none", cause),
        )
    registered.ended(rec, call, key, [buffer], number=number, api=api, code=code, cause=cause)


def mode_of(store: Any) -> str:
    """``standalone`` or ``embedded``, by the store's own configuration; "" before it is read."""
    config = memory.vars_of(store).get("config")
    if config is None:
        return ""
    standalone = getattr(config, "standalone_storage", False)
    return classify.STANDALONE if standalone else classify.EMBEDDED
