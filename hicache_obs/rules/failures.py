"""Alerts on a failure of HiCache start-up, or of a later call, that nothing newer has mended.

The row of such a failure stands until a newer run gets past start-up, also when the worker died
before any scrape; so no rule here needs a rate or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from hicache_obs import durations
from hicache_obs.rules.alert import CRITICAL, Alert
from hicache_obs.rules.templates import MODEL, affected, by, looked_up, meaning
from hicache_obs.rules.thresholds import Thresholds

INCIDENT = (*MODEL, "stage", "mode", "role", "pool", "allocator", "code", "cause")
"""Failures alike in these are one incident, of however many ranks and servers."""

UNREACHABLE = ("client_unreachable", "master_unreachable", "ipc_or_remote_map", "warmup_failed")
"""Causes that may mend themselves: Mooncake restarts, or is not up yet."""

_DEATHS = ("crashed_in_call", "oom_suspected")
REGISTRATION = (
    *("foreign_buffer", "segment_size_mismatch", "overlap", "transport", "empty_buffer"),
    *("null_pointer", "not_initialized", "unsupported_buffer_shape"),
    *("refused", "backend_missing", "bad_config", *_DEATHS),
    *("exception", "unknown"),
)
SETUP = (
    *("allocator_required", "logical_anchor", "mooncake_missing", "bad_config", "transport"),
    *(*_DEATHS, "exception"),
)
ALLOCATION = (
    *("budget", "too_small", "mmap", "null_pointer", "allocator_error", *_DEATHS, "exception"),
)
PINNING = ("pin", *_DEATHS, "exception")

_DOWN = (
    "Yes, by those servers named in `affected` that are starting: they do not come up. A server "
    "that is up goes on serving, without L3 if it is named."
)
_CODE = "{{ with $labels.code }}code {{ . }}{{ else }}no code{{ end }}"


def _of_mode(engine: str, store: str, backend: str) -> str:
    """Template text by the label ``mode``: of a transfer engine, of a Mooncake *store* (also
    before its mode is known), or of another storage *backend*, whose name the mode is then."""
    return (
        f'{{{{ if eq $labels.mode "transfer_engine" }}}}{engine}'
        '{{ else if match "^(standalone|embedded|direct_linker|)$" $labels.mode }}'
        f"{store}{{{{ else }}}}{backend} {{{{ $labels.mode }}}}{{{{ end }}}}"
    )


def _size(reason: str) -> str:
    """Template text: the size that was asked for. The newest is not known of a count: the most."""
    return looked_up(
        f'topk(1, hicache_host_pool_allocations_total{{LABELS, outcome="failure", {reason}}})',
        (*MODEL, "role", "pool"),
        "up to {{ .Labels.size_class }}",
        "size not known",
    )


_ALLOCATED, _PINNED = _size('reason!="pin"'), _size('reason="pin"')


def failures(limits: Thresholds) -> Iterable[Alert]:
    lasting = f'cause!~"{"|".join(UNREACHABLE)}"'
    yield _failure(
        limits,
        name="HiCacheRegistrationFailed",
        selector=f'stage=~"registration|attach", {lasting}',
        causes=REGISTRATION,
        summary="{{ $labels.model_name }}: "
        '{{ if eq $labels.stage "attach" }}a storage backend could not be attached{{ else }}'
        'registration of {{ if eq $labels.role "none" }}memory of no host pool{{ else }}'
        "the {{ $labels.role }} host pool{{ end }} with "
        + _of_mode("the transfer engine", "Mooncake", "storage backend")
        + " failed{{ end }} ({{ $labels.cause }})",
        told='{{ if eq $labels.stage "attach" }}SGLang could not attach a storage backend'
        "{{ with $labels.mode }} ({{ . }}){{ end }}{{ else }}"
        + _of_mode(
            "The transfer engine",
            "Mooncake{{ with $labels.mode }} ({{ . }}){{ end }}",
            "Storage backend",
        )
        + f" answered {_CODE} for "
        "{{ with $labels.pool }}pool {{ . }}{{ else }}memory of no pool{{ end }} "
        "(role {{ $labels.role }}{{ with $labels.allocator }}, allocator {{ . }}{{ end }}, "
        + looked_up(
            "max(hicache_registration_last_failure_bytes{LABELS})",
            (*MODEL, "mode", "role", "pool", "allocator"),
            "{{ . | value | humanize1024 }}B",
            "size not known",
        )
        + "){{ end }}",
        first="Stop the rollout, or go back to the last release and flags that started; the "
        "failure repeats at every start until its cause is mended.",
        worked="`hicache-obs status` shows no failure, and `hicache_pool_registered` is 1 for "
        "every role and pool; the page resolves by itself. For a server that will not come back "
        "under its name (a pod that was replaced): `hicache-obs forget HOST:PORT`.",
    )
    yield _failure(
        limits,
        name="HiCacheHostPoolAllocationFailed",
        selector='stage="allocation"',
        causes=ALLOCATION,
        summary="{{ $labels.model_name }}: the {{ $labels.role }} host pool could not be built "
        "({{ $labels.cause }})",
        told="SGLang could not build pool {{ $labels.pool }} (role {{ $labels.role }}, allocator "
        f"{{{{ $labels.allocator }}}}, {_ALLOCATED})",
        first="Lower --hicache-size (or --hicache-ratio) and restart the server: a smaller cache "
        "costs hit rate, not answers. (The other way round if the cause is `too_small`: raise it.)",
        worked="`hicache_host_pool_bytes` shows the pool, and the page resolves once the start "
        "got past HiCache.",
    )
    yield _failure(
        limits,
        name="HiCachePinningFailed",
        selector='stage="pinning"',
        causes=PINNING,
        summary="{{ $labels.model_name }}: the {{ $labels.role }} host pool could not be "
        f"page-locked ({_CODE})",
        told="Page-locking (cudaHostRegister) of pool {{ $labels.pool }} (role "
        f"{{{{ $labels.role }}}}, allocator {{{{ $labels.allocator }}}}, {_PINNED}) "
        "failed with " + _CODE,
        first="Lower --hicache-size per rank and restart; then look at ulimit -l and dmesg of the "
        "host.",
        worked="`hicache_pinned_bytes` shows the pool's bytes, and the page resolves.",
    )
    yield _failure(
        limits,
        name="HiCacheStoreSetupFailed",
        selector=f'stage="setup", {lasting}',
        causes=SETUP,
        summary="{{ $labels.model_name }}: "
        + _of_mode("the transfer engine", "the Mooncake store", "storage backend")
        + " could not be set up ({{ $labels.cause }})",
        told=_of_mode(
            "The transfer engine",
            "The {{ with $labels.mode }}{{ . }}{{ else }}Mooncake{{ end }} store",
            "Storage backend",
        )
        + f" gave {_CODE} at its set-up",
        first="Restart without --hicache-storage-backend: HiCache then works without L3, and the "
        "server answers.",
        worked="`hicache_store_info` is 1 for the server, and the page resolves.",
    )
    yield _failure(
        limits,
        name="HiCacheMooncakeUnreachable",
        selector=f'cause=~"{"|".join(UNREACHABLE)}"',
        causes=UNREACHABLE,
        wait=limits.unreachable_for,
        summary="{{ $labels.model_name }}: Mooncake cannot be reached ({{ $labels.cause }})",
        told="Stage {{ $labels.stage }} has been failing for "
        f"{durations.text(limits.unreachable_for)} or longer (mode {{{{ $labels.mode }}}}, "
        "role {{ $labels.role }}{{ with $labels.pool }}, pool {{ . }}{{ end }}"
        f"{{{{ with $labels.allocator }}}}, allocator {{{{ . }}}}{{{{ end }}}}, {_CODE})",
        first="See that mooncake_client (standalone) or mooncake_master (embedded) runs and "
        "listens where the workers look for it, and start it.",
        worked="A new start of a server gets past HiCache start-up, and the page resolves.",
    )


def _failure(
    limits: Thresholds,
    *,
    name: str,
    selector: str,
    causes: tuple[str, ...],
    summary: str,
    told: str,
    first: str,
    worked: str,
    wait: int = 0,
) -> Alert:
    rows = f"hicache_failure_active{{{selector}}}"
    if wait and limits.scrape_gap > 1:
        # While scrapes fail, the last one holds, for so long that it alone is no page.
        held = durations.text(limits.scrape_gap // 2)
        rows += (
            f"\n  or\n  last_over_time({rows}[{held}])\n  and on (cluster, job, instance) up == 0"
        )
    return Alert(
        name=name,
        severity=CRITICAL,
        expr=f"max {by(INCIDENT)} (\n  {rows}\n) == 1",
        wait=wait,
        keep=limits.scrape_gap,
        summary=summary,
        description=f"{told}: {meaning(causes)}.",
        affected=affected("hicache_failure_active{HOST, LABELS} == 1", INCIDENT),
        traffic=_DOWN,
        first=first,
        worked=worked,
        dashboard="hicache-server",
        causes=causes,
    )
