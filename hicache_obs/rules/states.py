"""Alerts on the state that a worker is in: what it lacks, what it waits for."""

from __future__ import annotations

from collections.abc import Iterable

from hicache_obs import durations
from hicache_obs.causes import CAUSES
from hicache_obs.rules.alert import CRITICAL, WARNING, Alert
from hicache_obs.rules.templates import MODEL, affected, by, looked_up
from hicache_obs.rules.thresholds import Thresholds

_BYTES = looked_up(
    "max by (bytes) (hicache_host_pool_info{LABELS} == 1)",
    (*MODEL, "role", "pool"),
    "{{ .Labels.bytes }} bytes",
    "size not known",
)

_IN_PROGRESS = "hicache_call_in_progress_since_timestamp_seconds"

# A pool of a worker inside a native call is on its way, or HiCacheCallHanging tells of it. Without
# this a rolling update would fire: its pods register one after another, for longer than `for`.
_UNREGISTERED = (
    "(hicache_pool_expected{HOST, LABELS} == 1 unless hicache_pool_registered{HOST, LABELS} == 1)\n"
    "  and ignoring (role, pool) hicache_worker_up{HOST} == 1\n"
    f"  unless ignoring (api, role, pool) {_IN_PROGRESS}{{HOST}} > 0"
)


def _anywhere(series: str) -> str:
    """*series* from every source and of every label."""
    return series.replace("{HOST, LABELS}", "").replace("{HOST}", "")


def states(limits: Thresholds) -> Iterable[Alert]:
    yield _mismatch(limits)
    yield _fallback(limits)
    yield _not_registered(limits)
    yield _transport(limits)
    yield _hanging(limits)
    yield _draft_fix(limits)


def _mismatch(limits: Thresholds) -> Alert:
    labels = (*MODEL, "role", "pool", "expected", "actual", "reason")
    return Alert(
        name="HiCacheAllocatorMismatch",
        severity=CRITICAL,
        expr=f'max {by(labels)} (\n  hicache_allocator_mismatch{{harmful="true"}}\n) == 1',
        keep=limits.scrape_gap,
        summary="{{ $labels.model_name }}: the {{ $labels.role }} host pool has allocator "
        "{{ $labels.actual }} where {{ $labels.expected }} is needed",
        description="A standalone Mooncake client refuses to register pool {{ $labels.pool }} "
        "(role {{ $labels.role }}, allocator {{ $labels.actual }}, expected "
        f"{{{{ $labels.expected }}}}, {_BYTES}; reason {{{{ $labels.reason }}}}): the server dies "
        "at its start, or the pool stays out of L3.",
        affected=affected('hicache_allocator_mismatch{HOST, harmful="true", LABELS} == 1', labels),
        traffic="Yes, if the servers named in `affected` are starting: they die at the "
        "registration that follows. Servers that were up before go on serving.",
        first=f"Mend the allocator: {CAUSES['foreign_buffer'].action}.",
        worked="`hicache_host_pool_info` names the same allocator for target and draft, and the "
        "page resolves at the next start.",
        dashboard="hicache-server",
    )


def _fallback(limits: Thresholds) -> Alert:
    labels = (*MODEL, "role", "pool", "expected", "actual", "reason")
    silent = 'harmful="false", reason=~"fallback|bypassed"'
    return Alert(
        name="HiCacheAllocatorFallback",
        severity=WARNING,
        expr=f"max {by(labels)} (\n  hicache_allocator_mismatch{{{silent}}}\n) == 1",
        wait=limits.degraded_for,
        keep=limits.scrape_gap,
        summary="{{ $labels.model_name }}: SGLang gave the {{ $labels.role }} host pool allocator "
        "{{ $labels.actual }} instead of {{ $labels.expected }}",
        description="Pool {{ $labels.pool }} (role {{ $labels.role }}) asked for allocator "
        f"{{{{ $labels.expected }}}} and has {{{{ $labels.actual }}}} ({_BYTES}; reason "
        "{{ $labels.reason }}). The store in use takes it; a standalone Mooncake client would not.",
        affected=affected(f"hicache_allocator_mismatch{{HOST, {silent}, LABELS}} == 1", labels),
        traffic="No. It is served, perhaps slower: the store copies what it could share.",
        first="If the reason is `fallback`: install the library of the allocator that was asked "
        "for into the image of the worker (`mooncake`: 0.3.8.post1 or later), and restart when it "
        "suits. If it is `bypassed`: nothing, this device takes other memory.",
        worked="`hicache_host_pool_info` shows the allocator that was asked for.",
        dashboard="hicache-server",
    )


def _not_registered(limits: Thresholds) -> Alert:
    labels = (*MODEL, "role", "pool")
    return Alert(
        name="HiCachePoolNotRegistered",
        severity=WARNING,
        expr=f"max {by(labels)} (\n  {_anywhere(_UNREGISTERED)}\n) == 1",
        wait=limits.not_registered_for,
        keep=limits.scrape_gap,
        summary="{{ $labels.model_name }}: the {{ $labels.role }} host pool ({{ $labels.pool }}) "
        "is not registered with Mooncake",
        description="The worker lives, and pool {{ $labels.pool }} (role {{ $labels.role }}, "
        f"{_BYTES}) should have been registered {durations.text(limits.not_registered_for)} ago: "
        "its pages do not reach L3, so cache misses cost prefill time.",
        affected=affected(f"({_UNREGISTERED})", labels),
        traffic="Not its answers. Prefill takes longer where pages are missed.",
        first="Search the server's log for a refused registration or 'draft L3 disabled' "
        "(`hicache-obs explain` reads it), then restart the server when it suits.",
        worked="`hicache_pool_registered` is 1 for the role and pool.",
        dashboard="hicache-server",
    )


def _transport(limits: Thresholds) -> Alert:
    labels = (*MODEL, "requested", "actual")
    return Alert(
        name="HiCacheTransportDowngraded",
        severity=WARNING,
        expr=f"max {by(labels)} (\n"
        '  hicache_transport_info{requested!~"tcp|", actual="tcp"}\n) == 1',
        wait=limits.degraded_for,
        keep=limits.scrape_gap,
        summary="{{ $labels.model_name }}: Mooncake uses {{ $labels.actual }} where "
        "{{ $labels.requested }} was asked for",
        description="The transfer engine was asked for {{ $labels.requested }}, found no device "
        "for it and took {{ $labels.actual }} without an error: transfers work, and are slow.",
        affected=affected("hicache_transport_info{HOST, LABELS} == 1", labels),
        traffic="It is served, with slow transfers between hosts.",
        first="Look for the device in the container (`ls /sys/class/infiniband`), at its name in "
        "the server's flags, and for MC_FORCE_TCP in the environment.",
        worked="After a restart `hicache_transport_info` names the protocol that was asked for.",
        dashboard="hicache-server",
    )


def _hanging(limits: Thresholds) -> Alert:
    labels = (*MODEL, "api", "role", "pool")
    return Alert(
        name="HiCacheCallHanging",
        severity=WARNING,
        expr=f"time() - min {by(labels)} (\n  {_IN_PROGRESS} > 0\n) > {limits.call_hangs_after}",
        keep=limits.scrape_gap,
        summary="{{ $labels.model_name }}: {{ $labels.api }}"
        '{{ if ne $labels.role "none" }} for the {{ $labels.role }} host pool{{ end }} '
        "has not come back for {{ $value | humanizeDuration }}",
        description="A native call, {{ $labels.api }} (role {{ $labels.role }}"
        f"{{{{ with $labels.pool }}}}, pool {{{{ . }}}}{{{{ end }}}}, {_BYTES}), was entered and "
        "has not come back. Registering takes up to 2 s a GiB, so hundreds of GiB take minutes; "
        "without progress in the server's log it hangs.",
        affected=affected(
            f"time() - ({_IN_PROGRESS}{{HOST, LABELS}} > 0) > {limits.call_hangs_after}", labels
        ),
        traffic="Yes, by the servers named in `affected`: they do not answer until the call comes "
        "back.",
        first="Wait as long as the server's log goes on. Else look whether mooncake_client and "
        "mooncake_master live and have CPU time, and restart the server.",
        worked="`hicache-obs status` shows no call in progress.",
        dashboard="hicache-server",
    )


def _draft_fix(limits: Thresholds) -> Alert:
    labels = (*MODEL, "state")
    return Alert(
        name="HiCacheDraftFixMissing",
        severity=WARNING,
        expr=f"max {by(labels)} (\n"
        '  hicache_draft_builder_info{state=~"off|unrecognised"}\n) == 1',
        wait=limits.degraded_for,
        keep=limits.scrape_gap,
        summary="{{ $labels.model_name }}: the draft host pool builder is left as SGLang has it "
        "({{ $labels.state }})",
        description='{{ if eq $labels.state "off" }}This SGLang builds the draft pool without '
        "allocator_type, and HICACHE_OBS_DRAFT_FIX=off keeps it so{{ else }}hicache-obs does not "
        "know the draft builder of this SGLang, so it was left alone{{ end }}: a start with a "
        "draft and a standalone Mooncake client may die.",
        affected=affected("hicache_draft_builder_info{HOST, LABELS} == 1", labels),
        traffic="No. The next start with a draft model may fail.",
        first="Unset HICACHE_OBS_DRAFT_FIX, or run SGLang 0.5.15 or later; if the builder is "
        "unrecognised, update hicache-obs.",
        worked="After a restart `hicache_draft_builder_info` is 1 for `applied` or `upstream`.",
        dashboard="hicache-fleet",
    )
