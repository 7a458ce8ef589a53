"""The cause of a failure, told from its return code and the ledger. Pure functions.

Mooncake's codes carry almost no cause: a standalone client answers 0 or -1, an embedded one 0 or
-600 (mooncake dummy_client.cpp, real_client.cpp of 0.3.13.post1). What the code does not say,
the provenance of the buffer does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hicache_obs.ledger import Provenance

STANDALONE = "standalone"
EMBEDDED = "embedded"

WANTS_ITS_ALLOCATOR = "requires MooncakeHostTensorAllocator"
"""In the text of a standalone store that got a pool of another (SGLang mooncake_store.py)."""

HEALTHY, NOT_INITIALISED, UNREACHABLE = 0, 1, 2
"""Answers of ``MooncakeDistributedStore.health_check`` (mooncake pyclient.h)."""

_NO_MEMORY = re.compile("mmap|map shared memory|(?i:can(no|')t allocate memory)")
_PINNING = re.compile("cudaHostRegister|pin_memory|CUDA error")
_BAD_CONFIG = re.compile("Config file path not set|Failed to load config")
_LOST_PEER = re.compile(r"gloo/transport/.*( by peer|Broken pipe|ocket closed)|likely closed\. Did")
_CODE = re.compile(r"error code: (-?\d+)|\brc=(-?\d+)|\bret=(-?\d+)")


def code_in(message: str) -> str:
    """The return code that SGLang put into its exception text, or ""."""
    match = _CODE.search(message)
    return next((group for group in match.groups() if group), "") if match else ""


def start_cause(message: str) -> str:
    """The cause of a failed start that no HiCache call failed in: ``peer`` where a collective of
    torch.distributed (gloo, TCPStore) found another rank gone."""
    return "peer" if _LOST_PEER.search(message) else "exception"


def registration_cause(
    *,
    mode: str,
    code: str,
    error_type: str,
    message: str,
    provenance: Provenance | None,
    overlaps: bool = False,
    size: int = 0,
    health: int | None = None,
    reachable: bool | None = None,
) -> str:
    """The cause of a failed ``register_buffer``.

    Args:
        mode: ``standalone`` or ``embedded``.
        code: the native return code as text, "" if the call did not get that far.
        provenance: of the buffer; None if its address could not be read.
        overlaps: whether a registered buffer shares bytes with this one.
        health: the answer of ``health_check``, None if it was not asked.
        reachable: whether the store's peer accepted a TCP connection after the failure.
    """
    if not code:
        if "not initialized" in message:
            return "not_initialized"
        if provenance is None or error_type in ("AttributeError", "TypeError"):
            return "unsupported_buffer_shape"
        return "exception"
    if provenance is None:
        return "unknown"
    if provenance.relation == "null":
        return "null_pointer"
    if mode == STANDALONE:
        return _standalone_cause(provenance, health, reachable)
    if size == 0:
        return "empty_buffer"
    if overlaps:
        return "overlap"
    if health == NOT_INITIALISED:
        return "not_initialized"
    if reachable is False:
        return "master_unreachable"
    return "transport"


def _standalone_cause(provenance: Provenance, health: int | None, reachable: bool | None) -> str:
    segment = provenance.segment
    if segment is None or segment.allocator != "mooncake":
        return "foreign_buffer"
    if provenance.relation == "part":
        return "segment_size_mismatch"
    if health == UNREACHABLE or reachable is False:
        return "client_unreachable"
    if health == NOT_INITIALISED:
        return "not_initialized"
    return "ipc_or_remote_map"


def engine_cause(code: str, buffers: Sequence[tuple[int, int]], overlaps: bool) -> str:
    """The cause of a failed ``register_memory`` of Mooncake's transfer engine, or of the store's
    for the direct linker.

    Args:
        code: the native return code as text, "" if the call raised.
        buffers: ``(address, bytes)`` of each that was given.
        overlaps: whether a registered buffer shares bytes with one of them.
    """
    if not code:
        return "exception"
    if any(address == 0 for address, _ in buffers):
        return "null_pointer"
    if any(size <= 0 for _, size in buffers) or not buffers:
        return "empty_buffer"
    if code == "-7" or overlaps:  # ADDRESS_OVERLAPPED (mooncake error.h)
        return "overlap"
    return "transport"


def setup_cause(
    *,
    mode: str,
    code: str,
    error_type: str,
    message: str,
    reachable: bool | None,
    logical: bool = False,
) -> str:
    """The cause of a failed ``MooncakeStore.__init__``.

    Args:
        logical: whether the pool that it was given has no allocator at all (``LogicalHostPool``).
        reachable: whether the configured client (standalone) or master (embedded) accepted a
            TCP connection after the failure; None if that was not tried.
    """
    if WANTS_ITS_ALLOCATOR in message:
        return "logical_anchor" if logical else "allocator_required"
    if error_type == "ImportError":
        return "mooncake_missing"
    if "Warmup" in message or error_type == "AssertionError":
        return "warmup_failed" if reachable is not False else _unreachable(mode)
    if code:
        if reachable is False:
            return _unreachable(mode)
        return "ipc_or_remote_map" if mode == STANDALONE else "transport"
    if "server timeout" in message:  # check_server polled the master for ten minutes
        return "master_unreachable"
    if error_type in ("ValueError", "JSONDecodeError") or _BAD_CONFIG.search(message):
        return "bad_config"
    return "exception"


def attach_cause(error_type: str) -> str:
    """The cause of a storage backend that could not be attached, where nothing below told it."""
    if error_type in ("ImportError", "ModuleNotFoundError"):
        return "backend_missing"
    return "bad_config" if error_type in ("ValueError", "NotImplementedError") else "exception"


def _unreachable(mode: str) -> str:
    return "client_unreachable" if mode == STANDALONE else "master_unreachable"


def allocation_reason(error_type: str, message: str) -> str:
    """Why a pool or segment could not be had (design: hicache_host_pool_allocations_total)."""
    if "Not enough host memory" in message:
        return "budget"
    if "should be larger than the device memory" in message:
        return "too_small"
    if _PINNING.search(message):
        return "pin"
    if "null pointer" in message:
        return "null_pointer"
    if error_type == "MemoryError" or _NO_MEMORY.search(message):
        return "mmap"
    if "shared memory" in message:
        return "allocator_error"
    return "exception"


def allocation_stage(reason: str) -> str:
    """The stage at which a host pool fails for *reason*."""
    return "pinning" if reason == "pin" else "allocation"


_ALLOCATORS = {
    "HostTensorAllocator": "default",
    "MooncakeHostTensorAllocator": "mooncake",
    "ShmHostTensorAllocator": "shm",
    "UMBPHostTensorAllocator": "mori",
    "TensorcastHostTensorAllocator": "tensorcast",
}
_OWN_ALLOCATOR = {"mooncake", "mori", "shm", "tensorcast"}


def allocator_label(class_name: str) -> str:
    """The label of an SGLang allocator class (mem_cache/pool_host/common.py and storage/)."""
    return _ALLOCATORS.get(class_name, "other")


def fallback_reason(requested: str, actual: str) -> str:
    """Why the allocator is not the one that was asked for, or "".

    SGLang answers every type without an allocator of its own ("file", None, ...) with the
    default one: that is no fallback. For the others it falls back when the vendor's library
    cannot be imported (``get_allocator_from_storage``).
    """
    if requested in _OWN_ALLOCATOR and actual != requested:
        return "import_error"
    return ""
