"""The storage backend of a cache: attached, detached, and what others than Mooncake register."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from hicache_obs import classify, faults, recorder
from hicache_obs.events import (
    BackendAttached,
    BackendDetached,
    BufferUnregistered,
    CallReturned,
    PoolRegistered,
)
from hicache_obs.hooks import memory, registered, scope, standing
from hicache_obs.hooks.around import Call, around
from hicache_obs.ledger import FailureRow, RegistrationKey
from hicache_obs.sglang_backends import REGISTERING, Vendor, backend_label

_ENDING = ("registration", "setup", "attach")
"""Stages whose failures end when the backend is taken away."""


def attach(call: Call) -> Iterator[None]:
    """``HiCacheController.attach_storage_backend(storage_backend, ...)`` and the override of
    ``HybridCacheController``, at start-up and at run time.

    SGLang raises; at run time its callers catch that and answer with a text. A failure that an
    inner hook has told of is not told twice.
    """
    if _attaching.get():
        yield
        return
    rec = recorder.get()
    backend = backend_label(call.argument(1, "storage_backend"))
    with scope.during(_attaching, True):
        yield
    cause = ""
    mended: tuple[FailureRow, ...] = ()
    if call.error is None:
        with rec.locked():
            mended = rec.ledger.mend("attach", "none", "")
    elif call.failed:
        stage, _ = rec.blamed(call.error)
        if not stage and classify.start_cause(call.message) != "peer":
            cause = classify.attach_cause(type(call.error).__name__)
            rec.blame(call.error, "attach", cause)
            with rec.locked():
                rec.ledger.add_failure("attach", "none", "", FailureRow("", "", "", cause))
    told: dict[str, Any] = {"backend": backend, "cause": cause, "mended": mended}
    rec.emit(BackendAttached(**told, **call.outcome))
    if call.failed and _taken_back(rec, call.args[0], backend):
        _ended(rec, backend, forgiven=())


_attaching: ContextVar[bool] = ContextVar("hicache_obs_attaching", default=False)
"""Whether an attach runs: the override calls its base's."""


def _taken_back(rec: recorder.Recorder, controller: Any, backend: str) -> bool:
    """Whether SGLang has dropped the store of a failed attach; where it has not, what was
    registered stays. A start that fails ends with its process, which keeps what it told."""
    if not rec.ready or memory.vars_of(controller).get("storage_backend") is not None:
        return False
    setup = rec.store_setup
    return (setup is not None and not setup.failed) or bool(rec.ledger.registered_in(backend))


def detach(call: Call) -> Iterator[None]:
    """``HiCacheController.detach_storage_backend``: the store is dropped, and what was registered
    with it. Raises RuntimeError where a storage thread does not end; then nothing has changed."""
    controller = call.args[0]
    backend = backend_label(memory.vars_of(controller).get("storage_backend_type"))
    yield
    if call.error is None:
        _ended(recorder.get(), backend, forgiven=_ENDING)


def _ended(rec: recorder.Recorder, backend: str, forgiven: tuple[str, ...]) -> None:
    """The store is gone, what was registered with it, and the failures of the stages *forgiven*."""
    mode = backend if backend in REGISTERING else rec.store_mode
    setup, rec.store_setup = rec.store_setup, None
    with rec.locked():
        pools = tuple(dict.fromkeys((p.key.role, p.key.pool) for p in rec.ledger.pools()))
        gone = rec.ledger.remove_registrations(rec.ledger.registered_in(mode))
        ended = tuple((stage, r, p, *row) for stage, r, p, row in rec.ledger.forgive(forgiven))
    rec.emit(
        BackendDetached(
            backend=backend,
            mode=mode,
            protocol=setup.protocol if setup else "",
            pools=pools,
            ended=ended,
        )
    )
    for key, size in gone:
        rec.emit(BufferUnregistered(**key._asdict(), bytes=size, registered_bytes=0))


def created(call: Call) -> Iterator[None]:
    """``StorageBackendFactory.create_backend(name, storage_config, mem_pool_host)``.

    The modules of most backends cannot be imported where the vendor's library is missing, so
    the registering methods of a backend's class are hooked when SGLang has made one.
    """
    name = backend_label(call.argument(1, "backend_name"))
    yield
    vendor = REGISTERING.get(name)
    if call.error is not None or vendor is None:
        return
    store = call.result
    _hook(type(store), _ANCHOR, _registers(name, _ANCHOR))
    _hook(type(store), _SIDE_POOL, _registers(name, _SIDE_POOL))
    library = memory.vars_of(store).get(vendor.attribute)
    if library is not None:
        _hook(type(library), vendor.method, _answer)


_ANCHOR, _SIDE_POOL = "register_mem_pool_host", "register_mem_host_pool_v2"
_hooked: set[tuple[type, str]] = set()


def _hook(made: type, name: str, observer: Callable[[Call], Iterator[None]]) -> None:
    """Put a hook on a method of a class that is known at run time only, where it is defined; once
    a class. What SGLang's base class of all stores defines registers nothing."""
    owner = next((c for c in made.__mro__ if name in vars(c)), None)
    if owner is None or owner.__name__ == "HiCacheStorage" or (owner, name) in _hooked:
        return
    original = getattr(owner, name)
    _hooked.add((owner, name))
    hook = around("backend_register", observer)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    setattr(owner, name, method)


_answers: ContextVar[list[object] | None] = ContextVar("hicache_obs_answers", default=None)


def _answer(call: Call) -> Iterator[None]:
    """The library's own register call, below one of the store's, which may catch what it raises."""
    yield
    answers = _answers.get()
    if answers is not None:
        answers.append(call.result if call.error is None else False)


def _registers(backend: str, method: str) -> Callable[[Call], Iterator[None]]:
    def observe(call: Call) -> Iterator[None]:
        pool = call.argument(1, "mem_pool_host" if method == _ANCHOR else "host_pool")
        if method == _ANCHOR:
            known = standing.known(pool)
            role, name = (known.key.role, known.key.pool) if known else (scope.TARGET, "kv")
        else:
            role, name = scope.name_registered(call.argument(2, "host_pool_name"))
            if name == "kv":
                yield
                return
        key = RegistrationKey(backend, *standing.name(pool, role, name))
        yield from _register(call, method, pool, key)

    return observe


def _copies(vendor: Vendor, store: object, answers: list[object]) -> bool:
    if not vendor.attribute:
        return False
    return not answers or not memory.vars_of(store).get(vendor.zero_copy, True)


def _register(call: Call, api: str, pool: Any, key: RegistrationKey) -> Iterator[None]:
    """One pool is given to a backend. SGLang raises where its library refuses, or goes on
    (``sglang_backends``); where the library was not asked, or not for the pool's own memory, the
    store copies and nothing is registered."""
    rec = recorder.get()
    ranges = memory.pool_ranges(memory.behind(pool))
    size = sum(size for _, size in ranges)
    number = registered.entered(rec, api, key, size)
    answers: list[object] = []
    with scope.during(_answers, answers):
        yield
    of_pool: dict[str, Any] = {"api": api, "role": key.role, "pool": key.pool}
    if call.error is None and _copies(REGISTERING[key.mode], call.args[0], answers):
        rec.emit(CallReturned(call=number, **of_pool, **call.outcome))
        return
    cause = ""
    if call.failed:
        foreign = isinstance(call.error, AttributeError | TypeError)
        cause = "exception" if foreign else "refused"
    if call.error is None and any(answer is False for answer in answers):
        cause = "refused"
    if cause:
        faults.logger.error(
            "hicache-obs: %s of the %s host pool (pool %s, %d bytes) with backend %s failed: %s",
            *(api, key.role, key.pool, size, key.mode, call.message or cause),
        )
    code = classify.code_in(call.message)
    registered.ended(rec, call, key, ranges, number=number, api=api, code=code, cause=cause)
    outcome = call.outcome | ({"outcome": "failure"} if cause else {})
    rec.emit(PoolRegistered(mode=key.mode, **of_pool, buffers=len(ranges), bytes=size, **outcome))
