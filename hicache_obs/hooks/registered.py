"""What is alike in every registration, whoever makes the call: its entry, and its end."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_obs import recorder
from hicache_obs.events import BufferRegistered, CallEntered
from hicache_obs.hooks.around import Call
from hicache_obs.ledger import FailureRow, RegistrationKey

Buffers = Sequence[tuple[int, int]]
"""``(address, bytes)`` of each buffer that one call registers."""

_STAGE = "registration"


def entered(rec: recorder.Recorder, api: str, key: RegistrationKey, size: int) -> int:
    """A call is about to register *size* bytes; returns its number."""
    number = rec.next_call()
    of_key, since = key._asdict(), rec.now()
    rec.emit(CallEntered(call=number, api=api, **of_key, bytes=size, since=since))
    return number


def ended(
    rec: recorder.Recorder,
    call: Call,
    key: RegistrationKey,
    buffers: Buffers,
    *,
    number: int,
    api: str,
    code: str,
    cause: str,
    mends: bool = True,
) -> None:
    """The call came back: into the ledger and the journal.

    Args:
        cause: of its failure, also where SGLang was not told of one; "" if it did not fail.
        mends: whether this success ends the failures of the pool so far.
    """
    mended: tuple[FailureRow, ...] = ()
    with rec.locked():
        if cause:
            row = FailureRow(key.mode, key.allocator, code, cause)
            rec.ledger.add_failure(_STAGE, key.role, key.pool, row)
        elif call.error is None:
            for address, size in buffers:
                rec.ledger.add_registration(address, size, key)
            mended = rec.ledger.mend(_STAGE, key.role, key.pool) if mends else ()
        total = rec.ledger.registered_bytes(key)
    if cause and call.error is not None:
        rec.blame(call.error, _STAGE, cause)
    rec.emit(
        BufferRegistered(
            call=number,
            api=api,
            **key._asdict(),
            bytes=sum(size for _, size in buffers),
            address=hex(buffers[0][0] if buffers else 0),
            code=code,
            cause=cause,
            registered_bytes=total,
            mended=mended,
            **call.outcome | ({"outcome": "failure"} if cause else {}),
        )
    )
