"""Set-up of the Mooncake store: ``MooncakeStore.__init__`` and the warm-up inside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hicache_obs import classify, faults, recorder
from hicache_obs.events import CallEntered, CallRefused, CallReturned, StoreSetUp
from hicache_obs.hooks import memory, mismatch, peer, standing
from hicache_obs.hooks.around import Call
from hicache_obs.hooks.registration import mode_of
from hicache_obs.ledger import FailureRow


def store_init(call: Call) -> Iterator[None]:
    """``MooncakeStore.__init__(storage_config, mem_pool)``: set-up and warm-up.

    Raises in SGLang: RuntimeError with the code of ``setup`` or ``setup_dummy``, ValueError for
    a bad configuration, AssertionError or RuntimeError from the warm-up. The log line "An error
    occurred while loading the configuration" stands over all of them.
    """
    rec, store = recorder.get(), call.args[0]
    number = rec.next_call()
    rec.emit(_entered(rec, number, "setup"))
    yield
    mode, config = mode_of(store), memory.vars_of(store).get("config")
    rec.store_mode = mode
    embedded = mode == classify.EMBEDDED
    code, cause = "0", ""
    if call.error is not None and call.failed:
        code = _code(call)
        try:
            cause = _diagnose(rec, call, number, mode, config)
        except Exception as error:  # noqa: BLE001 - the failure itself must be told
            faults.count("diagnose", error)
            cause = "unknown"
        rec.blame(call.error, "setup", cause)
    mended: tuple[FailureRow, ...] = ()
    with rec.locked():
        if call.error is None:
            mended = rec.ledger.mend("setup", "none", "")
        elif call.failed:
            rec.ledger.add_failure("setup", "none", "", FailureRow(mode, "", code, cause))
    wanting = cause == "allocator_required"
    refused = standing.known(call.argument(2, "mem_pool")) if wanting else None
    mismatch.check_store(rec, mode, refused)
    rec.store_setup = StoreSetUp(
        call=number,
        api="setup",
        backend="mooncake",
        mode=mode,
        # A standalone client has a transport of its own; this setting is not read then.
        protocol=str(getattr(config, "protocol", "")) if embedded else "",
        code=code,
        cause=cause,
        mended=mended,
        **call.outcome,
    )
    rec.emit(rec.store_setup)


def warmup(call: Call) -> Iterator[None]:
    """``MooncakeStore.warmup``: a put, tried ten times a second apart, and a get."""
    rec = recorder.get()
    number = rec.next_call()
    rec.emit(_entered(rec, number, "warmup"))
    yield
    rec.emit(CallReturned(call=number, api="warmup", role="none", pool="", **call.outcome))


def _entered(rec: recorder.Recorder, number: int, api: str) -> CallEntered:
    return CallEntered(
        call=number, api=api, role="none", pool="", bytes=0, since=rec.now(), mode=rec.mode
    )


def _code(call: Call) -> str:
    return "" if isinstance(call.error, TypeError) else classify.code_in(call.message)


def _diagnose(rec: recorder.Recorder, call: Call, number: int, mode: str, config: Any) -> str:
    """The cause of a failed set-up; its peer is asked after the journal has what is known."""
    code, error_type = _code(call), type(call.error).__name__
    # SGLang has just read the same attribute, before it raised this text.
    pool = call.argument(2, "mem_pool") if classify.WANTS_ITS_ALLOCATOR in call.message else call
    logical = getattr(pool, "allocator", "") is None

    def cause(reachable: bool | None) -> str:
        return classify.setup_cause(
            mode=mode,
            code=code,
            error_type=error_type,
            message=call.message,
            reachable=reachable,
            logical=logical,
        )

    if not (code or "Warmup" in call.message or error_type == "AssertionError"):
        return cause(None)
    rec.emit(
        CallRefused(
            call=number,
            api="setup",
            mode=mode,
            role="none",
            pool="",
            allocator="",
            bytes=0,
            code=code,
            cause=cause(None),
            **call.outcome,
        )
    )
    return cause(peer.reachable(mode, config))
