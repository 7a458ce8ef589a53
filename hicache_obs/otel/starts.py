"""Each start of a worker as a trace.

The root span is the start, from its first journal line to ready, failed or dead; below it stands
what was done in it. Identifiers are made from the run's name, so that a start that is read again
(by an exporter that was restarted) is the same trace. Attributes have the names and values of the
metrics' labels, and sizes in bytes. Times are those of the worker's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import sha256

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from hicache_obs import events as ev
from hicache_obs.exporter.fold import Run
from hicache_obs.wire import Record

_NAMES: dict[type[ev.Event], str] = {
    ev.SegmentAllocated: "allocate",
    ev.PagesPinned: "pin",
    ev.PoolBuilt: "construct host pool",
    ev.StoreSetUp: "set up store",
    ev.BufferRegistered: "register buffer",
    ev.PoolRegistered: "register host pool",
    ev.BackendAttached: "attach storage backend",
    ev.CallReturned: "call",
}
_TOLD = frozenset(
    [
        *("stage", "api", "mode", "role", "pool", "pool_class", "allocator", "requested_allocator"),
        *("layout", "dtype", "page_size", "draft_layers", "bytes", "tokens", "buffers", "chunks"),
        *("pinned_bytes", "registered_bytes", "backend", "protocol", "outcome", "reason"),
        *("code", "cause", "expected", "actual", "harmful"),
    ]
)
"""Fields of events that become attributes. Addresses do not."""
Attributes = dict[str, str | int | float | bool]


class Identifiers(IdGenerator):
    """Gives the trace of *run* and the span of *what* in it, as they were set before."""

    run = what = ""

    def generate_trace_id(self) -> int:
        return int.from_bytes(sha256(self.run.encode()).digest()[:16], "big")

    def generate_span_id(self) -> int:
        return int.from_bytes(sha256(f"{self.run}/{self.what}".encode()).digest()[:8], "big")


@dataclass
class _Start:
    root: Span
    below: Context
    ended: bool = False


class Starts:
    """Called with the lines of runs, and with None when one ended (``directory.Listener``)."""

    def __init__(self, tracer: Tracer, identifiers: Identifiers) -> None:
        self._tracer = tracer
        self._identifiers = identifiers
        self._starts: dict[str, _Start] = {}

    def __call__(self, run: Run, record: Record | None) -> None:
        start = self._start(run)
        if record is None:
            self._died(run, start)
            del self._starts[run.name.text]
        elif record.event is not None:
            self._told(run, start, record, record.event)

    def _start(self, run: Run) -> _Start:
        name = run.name.text
        if name not in self._starts:
            self._identifiers.run, self._identifiers.what = name, "start"
            began = run.name.started_ns
            root = self._tracer.start_span("start", context=Context(), start_time=began)
            self._starts[name] = _Start(root, set_span_in_context(root, Context()))
        return self._starts[name]

    def _told(self, run: Run, start: _Start, record: Record, event: ev.Event) -> None:
        end = _ns(record.time)
        if isinstance(event, ev.MismatchSeen) and event.active:
            start.root.add_event("allocator mismatch", _attributes(event), end)
        elif isinstance(event, ev.WorkerReady):
            _end(run, start, {"outcome": "success"}, end)
        elif isinstance(event, ev.WorkerFailed):
            _fail(start.root, event, end)
            _end(run, start, _attributes(event), end)
        elif isinstance(event, ev.Outcome) and type(event) in _NAMES:
            began = end - _ns(event.duration_s)
            span = self._span(run, start, str(record.seq), event, began)
            _fail(span, event, end)
            span.end(end)

    def _died(self, run: Run, start: _Start) -> None:
        """What *run* left open. Its verdict says whether that is a failure."""
        died, verdict = _ns(run.dead_since), run.verdict
        failed = verdict is not None and verdict.outcome == "failure"
        for refused in run.refused.values():
            began = died - _ns(refused.duration_s)
            span = self._span(run, start, f"call {refused.call}", refused, began)
            _fail(span, refused, died)
            span.end(died)
        for call in run.calls.values():
            began = _ns(call.since)
            span = self._span(run, start, f"call {call.call}", call, began)
            span.set_attribute("outcome", verdict.outcome if verdict else "unfinished")
            if failed and verdict is not None:
                span.set_attribute("cause", verdict.cause)
                span.set_status(Status(StatusCode.ERROR, f"not come back: {verdict.cause}"))
            span.end(max(began, died))
        told: Attributes = {}
        if verdict is not None:
            told = {"outcome": verdict.outcome, "stage": verdict.stage, "cause": verdict.cause}
        if failed and verdict is not None:
            error = run.failure.error if run.failure else ""
            start.root.set_status(Status(StatusCode.ERROR, error or verdict.cause))
        _end(run, start, told, died)

    def _span(self, run: Run, start: _Start, what: str, event: ev.Event, began: int) -> Span:
        self._identifiers.run, self._identifiers.what = run.name.text, what
        return self._tracer.start_span(
            _NAMES.get(type(event)) or str(getattr(event, "api", "")),
            context=start.below,
            attributes={**dict(run.labels), **_attributes(event)},
            start_time=began,
        )


def _end(run: Run, start: _Start, told: Attributes, end: int) -> None:
    """End the root; one that was ended stays as it is."""
    if start.ended:
        return
    start.ended = True
    began, worker = run.started, run.worker
    facts: Attributes = {
        **dict(run.labels),
        "run": run.name.text,
        "launch": run.launch,
        "pid": run.name.pid,
    }
    if began is not None:
        facts["obs_version"] = began.obs_version
    if worker is not None:
        for name in ("sglang_version", "mooncake_version", "torch_version", "node_rank", "nnodes"):
            facts[name] = getattr(worker, name)
        facts |= {"backend": worker.storage_backend, "mode": worker.mode}
    start.root.set_attributes({**facts, **told})
    start.root.end(max(end, run.name.started_ns))


def _fail(span: Span, event: ev.Outcome, when: int) -> None:
    """Give *span* the status and the recorded exception of an *event* that failed."""
    if not event.failed:
        return
    if event.error_type:
        told = {"exception.type": event.error_type, "exception.message": event.error}
        span.add_event("exception", told, when)
    words = (getattr(event, "cause", "") or getattr(event, "reason", ""), event.error)
    span.set_status(Status(StatusCode.ERROR, ": ".join(word for word in words if word) or None))


def _attributes(event: ev.Event) -> Attributes:
    return {
        field.name: value
        for field in fields(event)
        if field.name in _TOLD and (value := getattr(event, field.name)) not in ("", None)
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
