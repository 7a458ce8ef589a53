"""The metric table: the one place that names a metric.

The README's table, ``updates`` (events to updates of this table), the live applier and the
exporter are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

WORKER_LABELS = ("model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank", "server_port")
"""On every series of a worker; names and values as SGLang's scheduler metrics have them."""

GAUGE, COUNTER = "gauge", "counter"


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric: name as scraped, type, labels beside ``WORKER_LABELS``, help text.

    Each is one object of this module, so it is compared and hashed as that.
    """

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


class Update(NamedTuple):
    """Set a gauge to, or add to a counter, *value*. Labels are in the metric's order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def _metric(name: str, kind: str, labels: str, help_text: str) -> Metric:
    return Metric(name, kind, tuple(labels.split()), help_text)


FAILURE_ACTIVE = _metric(
    "hicache_failure_active",
    GAUGE,
    "stage mode role pool allocator code cause",
    "1 while this failure of HiCache start-up or of a later call is not mended.",
)
POOL_BYTES = _metric(
    "hicache_host_pool_bytes",
    GAUGE,
    "role pool allocator",
    "Bytes of host memory held by host pools; memory shared by two pools counts once.",
)
POOL_TOKENS = _metric(
    "hicache_host_pool_tokens", GAUGE, "role pool allocator", "Token slots of host pools."
)
POOL_INFO = _metric(
    "hicache_host_pool_info",
    GAUGE,
    "role pool pool_class allocator requested_allocator layout dtype page_size draft_layers bytes",
    "1 for each host pool that stands; its byte size is a label here and only here.",
)
ALLOCATIONS = _metric(
    "hicache_host_pool_allocations_total",
    COUNTER,
    "role pool allocator outcome reason size_class",
    "Host pool constructions.",
)
ALLOCATION_DURATION = _metric(
    "hicache_host_pool_allocation_duration_seconds",
    GAUGE,
    "role pool",
    "Duration of the newest construction of the host pool.",
)
PINS = _metric(
    "hicache_pins_total",
    COUNTER,
    "role pool code outcome",
    "Page-locking calls (cudaHostRegister).",
)
PINNED_BYTES = _metric(
    "hicache_pinned_bytes", GAUGE, "role pool", "Bytes of host memory page-locked by SGLang."
)
REGISTRATIONS = _metric(
    "hicache_registrations_total",
    COUNTER,
    "api mode role pool allocator outcome code cause size_class",
    "Calls that register a buffer with Mooncake or another storage backend.",
)
REGISTERED_BYTES = _metric(
    "hicache_registered_bytes",
    GAUGE,
    "mode role pool allocator",
    "Bytes registered now, counted by address.",
)
REGISTRATION_DURATION = _metric(
    "hicache_registration_duration_seconds",
    GAUGE,
    "mode role pool",
    "Duration of the newest registration call.",
)
LAST_FAILURE_TIME = _metric(
    "hicache_registration_last_failure_timestamp_seconds",
    GAUGE,
    "mode role pool allocator",
    "Time of the newest failed registration; for display, not for alerts.",
)
LAST_FAILURE_BYTES = _metric(
    "hicache_registration_last_failure_bytes",
    GAUGE,
    "mode role pool allocator",
    "Size of the buffer of the newest failed registration.",
)
POOL_EXPECTED = _metric(
    "hicache_pool_expected", GAUGE, "role pool", "1 if the host pool should be registered."
)
POOL_REGISTERED = _metric(
    "hicache_pool_registered", GAUGE, "role pool", "1 if the host pool is registered."
)
MISMATCH = _metric(
    "hicache_allocator_mismatch",
    GAUGE,
    "role pool expected actual reason harmful",
    "1 if a host pool's allocator is not the one it should have.",
)
FALLBACKS = _metric(
    "hicache_allocator_fallbacks_total",
    COUNTER,
    "requested actual reason",
    "Times that SGLang gave another allocator, or other pages, than it was asked for.",
)
STORE_SETUPS = _metric(
    "hicache_store_setups_total", COUNTER, "mode outcome code cause", "Set-ups of the store."
)
STORE_INFO = _metric(
    "hicache_store_info", GAUGE, "backend mode protocol", "1 for the store that is set up."
)
TRANSPORT_INFO = _metric(
    "hicache_transport_info",
    GAUGE,
    "requested actual",
    "1 for the protocol that SGLang's transfer engine was asked for and the one it uses.",
)
CALL_IN_PROGRESS = _metric(
    "hicache_call_in_progress_since_timestamp_seconds",
    GAUGE,
    "api role pool",
    "Time at which a native call was entered that has not come back; 0 if none.",
)
HOST_LIMIT = _metric(
    "hicache_host_limit_bytes",
    GAUGE,
    "source",
    "Memory limit seen at the newest request for a host pool: psutil (the host), cgroup, hugetlb, "
    "memlock, numa.",
)
HOST_MEMORY = _metric(
    "hicache_host_memory_bytes",
    GAUGE,
    "source",
    "Bytes that were free under the limit at the newest request for a host pool.",
)
WORKER_UP = _metric("hicache_worker_up", GAUGE, "", "1 while the worker process lives.")
WORKER_INFO = _metric(
    "hicache_worker_info",
    GAUGE,
    "sglang_version mooncake_version torch_version node_rank nnodes",
    "1 for each worker: versions and place.",
)
WORKER_STARTS = _metric(
    "hicache_worker_starts_total", COUNTER, "outcome stage cause", "Starts of a worker that ended."
)
DRAFT_BUILDER = _metric(
    "hicache_draft_builder_info",
    GAUGE,
    "state",
    "1 for the state of the draft host pool builder.",
)
OBS_HOOKS = _metric("hicache_obs_hooks", GAUGE, "state", "Hook points by state.")
OBS_HOOK_MISSING = _metric(
    "hicache_obs_hook_missing", GAUGE, "target", "1 for each hook point that could not be hooked."
)
OBS_BUILD = _metric(
    "hicache_obs_build_info", GAUGE, "version python_version", "1 for the version in use."
)
OBS_ERRORS = _metric("hicache_obs_errors_total", COUNTER, "where", "Faults of hicache-obs itself.")
OBS_JOURNAL_LOST = _metric(
    "hicache_obs_journal_lost_events_total",
    COUNTER,
    "",
    "Events that could not be written to the journal.",
)
OBS_LAST_EVENT = _metric(
    "hicache_obs_last_event_timestamp_seconds",
    GAUGE,
    "",
    "Time of the newest event; a call that is entered counts when it comes back.",
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

JOURNAL_LINES = _metric(
    "hicache_obs_journal_lines_total",
    COUNTER,
    "result",
    "Journal lines read: event, skew (of another version: what is known was used), broken.",
)
JOURNAL_RUNS = _metric("hicache_obs_journal_runs", GAUGE, "state", "Runs followed: live, dead.")
JOURNAL_DIRECTORIES = _metric(
    "hicache_obs_journal_directories",
    GAUGE,
    "state",
    "Journal directories by state: read, waiting (not there yet), unreadable.",
)

EXPORTER_METRICS = (JOURNAL_LINES, JOURNAL_RUNS, JOURNAL_DIRECTORIES)
"""Only the exporter has these, without the labels of a worker."""

HELD = frozenset({FAILURE_ACTIVE, MISMATCH, LAST_FAILURE_TIME, LAST_FAILURE_BYTES})
"""Stay after a run's death, also while a newer run of its server is still starting."""

PAGED = frozenset({FAILURE_ACTIVE, MISMATCH})
"""Those of them that alerts fire on."""

KEPT = HELD | {
    *(POOL_INFO, STORE_INFO, POOL_EXPECTED, WORKER_INFO, WORKER_UP),
    *(HOST_LIMIT, HOST_MEMORY),  # they say why a request failed, and are read beside it
}
"""Stay after a run's death while it is the newest of its server and rank. All others go."""

ADDED = frozenset({POOL_BYTES, POOL_TOKENS, PINNED_BYTES, REGISTERED_BYTES})
"""What each process holds for itself: two with the same labels (engines of one process, all with
SGLang's default port) hold the sum. None of them outlives its process."""

_ENDED_AT_ZERO = frozenset({POOL_INFO, STORE_INFO, DRAFT_BUILDER, CALL_IN_PROGRESS, MISMATCH})


def ended(metric: Metric, labels: tuple[str, ...], value: float) -> bool:
    """Whether a row of *value* says that it ended, so that it can go where rows can go.

    The row of a failure with empty code and cause is there from the start, at 0.
    """
    if value != 0:
        return False
    return metric in _ENDED_AT_ZERO or (metric is FAILURE_ACTIVE and labels[-2:] != ("", ""))


RESERVED_LABELS = (
    frozenset(WORKER_LABELS)
    | {label for m in (*METRICS, *EXPORTER_METRICS) for label in m.labels}
    | {"pid", "le", "host", "namespace", "pod"}
    | {"cluster", "instance", "job"}
)
"""Ours, those of prometheus_client, those that the exporter adds, and those of a scrape target."""

DRAFT_BUILDER_STATES = ("applied", "pending", "latent", "upstream", "off", "unrecognised")


def size_class(size: int) -> str:
    """The smallest power of two that holds *size* bytes: ``64MiB``, ``16GiB``, ... ; ``0``."""
    if size <= 0:
        return "0"
    exponent = (size - 1).bit_length()
    unit = min(exponent // 10, 5)
    return f"{1 << (exponent - 10 * unit)}{('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[unit]}"
