"""What the death of a run means that did not say so itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from hicache_obs import metrics as m
from hicache_obs.events import CallEntered, CallRefused
from hicache_obs.exporter.fold import Failure, Run, Verdict, active, stage_of
from hicache_obs.metrics import Update

_Call = TypeVar("_Call", CallEntered, CallRefused)
CRASHED, OOM, PEER = "crashed_in_call", "oom_suspected", "peer"


def judge(died: list[Run], others: Iterable[Run]) -> None:
    """Give each of *died* its verdict, but for those that a checkpoint says were judged.

    *others* are all runs known to be dead before.
    All of *died* were seen dead in one look, with their journals read to the end; so none of
    them is known to have gone first. A run that had failed or crashed before a look is the
    cause of what dies later in the same server start. Where nothing tells, the start is
    ``unfinished``, which is no failure: a stop by SIGTERM leaves the same trace.
    """
    first = _stages([*others, *died])
    new = [run for run in died if not run.judged]
    for run in new:
        run.verdict = _verdict(run, first.get(run.launch))
    crashed = _stages(new)
    for run in new:
        if run.verdict and run.verdict.outcome == "unfinished" and run.launch in crashed:
            run.verdict = Verdict("failure", crashed[run.launch], PEER)
    for run in died:
        run.judged = True
        _apply(run)


def _stages(runs: Iterable[Run]) -> dict[str, str]:
    """Each launch of *runs* in which one failed, and the stage of the failure; "" outside
    HiCache."""
    found: dict[str, str] = {}
    for run in runs:
        stage = _failed_at(run)
        if stage is not None:
            found[run.launch] = found.get(run.launch) or stage
    return found


def _failed_at(run: Run) -> str | None:
    """The stage of a failure of the run's own, which its peers may have died of."""
    if run.failed is not None:
        return run.failed.stage
    for stage, *_ in active(run, m.FAILURE_ACTIVE):
        return stage
    verdict = run.verdict
    if verdict is not None and verdict.outcome == "failure" and verdict.cause != PEER:
        return verdict.stage
    return None


def _verdict(run: Run, peer_failed_at: str | None) -> Verdict | None:
    call = _newest(run.calls)
    if run.left or (run.ready and call is None):
        return None
    refused = _newest(run.refused)
    if refused is not None:
        return Verdict("failure", stage_of(refused.api), refused.cause)
    if not run.ready and run.failure is not None and any(active(run, m.FAILURE_ACTIVE)):
        # It failed, and was killed before its exception got out of the scheduler.
        return Verdict("failure", run.failure.stage, run.failure.cause)
    if peer_failed_at is not None:
        return None if run.ready else Verdict("failure", peer_failed_at, PEER)
    if call is None:
        return Verdict("unfinished", "", "")
    cause = OOM if _did_not_fit(run, call) else CRASHED
    return Verdict("failure", stage_of(call.api), cause)


def _newest(calls: dict[int, _Call]) -> _Call | None:
    return next(reversed(calls.values()), None)


def _did_not_fit(run: Run, call: CallEntered) -> bool:
    """Whether the request went beyond the memory limit that was seen when the call began.

    Page-locking asks for memory that its allocation may have brought in already.
    """
    wanted = call.bytes
    if call.api == "pin":
        before = run.used.get((call.role, call.pool), call.used_bytes)
        wanted -= min(wanted, max(0, call.used_bytes - before))
    return 0 < call.limit_bytes < call.used_bytes + wanted


def _apply(run: Run) -> None:
    """The rows and counts that follow from the verdict."""
    verdict = run.verdict
    if verdict is None:
        return
    if not run.ready:
        run.apply(Update(m.WORKER_STARTS, tuple(verdict), 1.0))
    refused = _newest(run.refused)
    if refused is not None:
        told = (refused.mode, refused.role, refused.pool, refused.allocator, refused.code)
        run.apply(Update(m.FAILURE_ACTIVE, (verdict.stage, *told, refused.cause), 1.0))
        return
    call = _newest(run.calls)
    if call is None or verdict.cause not in (CRASHED, OOM):
        return
    mode = call.mode or (run.worker.mode if run.worker else "")
    labels = (verdict.stage, mode, call.role, call.pool, call.allocator, "", verdict.cause)
    run.apply(Update(m.FAILURE_ACTIVE, labels, 1.0))
    run.failure = Failure(
        time=call.since,
        stage=verdict.stage,
        mode=mode,
        role=call.role,
        pool=call.pool,
        allocator=call.allocator,
        bytes=call.bytes,
        code="",
        cause=verdict.cause,
        error_type="",
        error=_told(call),
    )


def _told(call: CallEntered) -> str:
    text = f"the process ended inside {call.api}, without a word"
    if call.limit_bytes:
        text += (
            f"; it asked for {call.bytes} bytes with {call.used_bytes} of {call.limit_bytes} "
            f"in use ({call.limit_source} limit)"
        )
    return text
