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
    first = {run.launch for run in others if _failed(run)}
    first |= {run.launch for run in died if _failed(run)}
    new = [run for run in died if not run.judged]
    for run in new:
        run.verdict = _verdict(run, run.launch in first)
    crashed = {run.launch for run in new if _failed(run)}
    for run in new:
        if run.verdict and run.verdict.outcome == "unfinished" and run.launch in crashed:
            run.verdict = Verdict("failure", "", PEER)
    for run in died:
        run.judged = True
        _apply(run)


def _failed(run: Run) -> bool:
    """Whether the run has a failure of its own, which its peers may have died of."""
    if run.failed is not None or any(active(run, m.FAILURE_ACTIVE)):
        return True
    verdict = run.verdict
    return verdict is not None and verdict.outcome == "failure" and verdict.cause != PEER


def _verdict(run: Run, after_another: bool) -> Verdict | None:
    call = _newest(run.calls)
    if run.left or (run.ready and call is None):
        return None
    refused = _newest(run.refused)
    if refused is not None:
        return Verdict("failure", stage_of(refused.api), refused.cause)
    if not run.ready and run.failure is not None and any(active(run, m.FAILURE_ACTIVE)):
        # It failed, and was killed before its exception got out of the scheduler.
        return Verdict("failure", run.failure.stage, run.failure.cause)
    if after_another:
        return None if run.ready else Verdict("failure", "", PEER)
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
