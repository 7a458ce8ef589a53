"""Return codes of the libraries below a host pool: name, meaning, what to do.

The same number means different things in different libraries, so a code has a *space*: ``store``
(mooncake store/include/types.h, ErrorCode), ``te`` (mooncake transfer engine error.h), ``cuda``
(cudaError of CUDA 12.9, driver_types.h), ``errno`` (as printed by Mooncake's RDMA transport) and
``acl`` (Ascend). Which code leaves which call was read in Mooncake 0.3.13.post1.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """*causes*: those that the code may stand for, the most frequent first."""

    space: str
    value: int
    name: str
    meaning: str
    action: str
    causes: tuple[str, ...] = ()


_STANDALONE = (
    "foreign_buffer",
    "segment_size_mismatch",
    "client_unreachable",
    "null_pointer",
    "ipc_or_remote_map",
)
_EMBEDDED = ("overlap", "master_unreachable", "null_pointer", "empty_buffer", "transport")
_SEE_CAUSE = "the code alone does not tell: look at the label cause"
_DATA = "a data path code: registration is not where it comes from"

CODES = (
    Code("store", 0, "OK", "done", "nothing"),
    Code(
        "store",
        -1,
        "INTERNAL_ERROR",
        "a standalone client's only refusal, for any reason; an embedded client that found no port",
        _SEE_CAUSE,
        _STANDALONE,
    ),
    Code(
        "store", -10, "BUFFER_OVERFLOW", "the local buffer is too small", "raise local_buffer_size"
    ),
    Code(
        "store",
        -101,
        "SEGMENT_NOT_FOUND",
        "the master does not know the segment",
        "restart the client",
    ),
    Code(
        "store",
        -102,
        "SEGMENT_ALREADY_EXISTS",
        "another client has a segment of this host and port",
        "give each client a host and port of its own; after a restart wait for the old one's lease",
    ),
    Code(
        "store",
        -103,
        "CLIENT_NOT_FOUND",
        "the master does not know the client",
        "restart the client",
    ),
    Code("store", -200, "NO_AVAILABLE_HANDLE", "no room in any segment", "add segment memory"),
    Code("store", -500, "WRITE_FAIL", _DATA, "look at the segment's owner"),
    Code(
        "store",
        -600,
        "INVALID_PARAMS",
        "an embedded client's refusal, for nearly any reason",
        _SEE_CAUSE,
        _EMBEDDED,
    ),
    Code(
        "store", -601, "ILLEGAL_CLIENT", "the client may not do this", "check who owns the object"
    ),
    Code(
        "store",
        -800,
        "TRANSFER_FAIL",
        "a transfer failed; often its buffer was never registered",
        "look at hicache_pool_registered",
    ),
    Code(
        "store",
        -900,
        "RPC_FAIL",
        "master or client does not answer",
        "start it; check the network",
        ("client_unreachable", "master_unreachable"),
    ),
    Code(
        "store",
        -901,
        "RPC_TIMEOUT",
        "master or client answers too late",
        "look at its load; check the network",
        ("client_unreachable", "master_unreachable"),
    ),
    Code("store", -1010, "UNAVAILABLE_IN_CURRENT_STATUS", "no leader yet", "wait for the master"),
    Code("store", -1011, "UNAVAILABLE_IN_CURRENT_MODE", "not in this mode", "check the flags"),
    Code(
        "te",
        0,
        "OK",
        "done; it does not prove RDMA: without a device TCP is taken in silence",
        "none",
    ),
    Code(
        "te", -1, "INVALID_ARGUMENT", "a bad argument, or no metadata server", "check the address"
    ),
    Code("te", -3, "ADDRESS_NOT_REGISTERED", "the buffer is not registered", "register it first"),
    Code(
        "te", -6, "DEVICE_NOT_FOUND", "there is no such device", "check device_name and ibv_devices"
    ),
    Code(
        "te",
        -7,
        "ADDRESS_OVERLAPPED",
        "a registered buffer shares bytes with this one",
        "look for two pools over one buffer",
        ("overlap",),
    ),
    Code("te", -101, "DNS", "a host name cannot be resolved", "check local_hostname"),
    Code("te", -102, "SOCKET", "no connection", "check port and network"),
    Code("te", -200, "METADATA", "the metadata server failed", "check metadata_server"),
    Code(
        "te", -202, "CONTEXT", "ibv_reg_mr failed", "see errno in the line before", ("transport",)
    ),
    Code("te", -302, "MEMORY", "no memory", "check ulimit -l", ("transport",)),
    Code("cuda", 0, "cudaSuccess", "page-locked", "nothing"),
    Code(
        "cuda",
        1,
        "cudaErrorInvalidValue",
        "a null, empty or unmapped range, or one too large for one call",
        "lower the size per rank; look into dmesg",
        ("pin",),
    ),
    Code(
        "cuda",
        2,
        "cudaErrorMemoryAllocation",
        "cannot page-lock: a limit, or 512 GiB and more in one call (R580 drivers); not VRAM",
        "ulimit -l unlimited; split the pool",
        ("pin",),
    ),
    Code("cuda", 3, "cudaErrorInitializationError", "no usable GPU", "check the driver", ("pin",)),
    Code(
        "cuda",
        100,
        "cudaErrorNoDevice",
        "no GPU is visible",
        "check CUDA_VISIBLE_DEVICES",
        ("pin",),
    ),
    Code(
        "cuda",
        700,
        "cudaErrorIllegalAddress",
        "an earlier error that sticks; page-locking did not cause it",
        "find the first error and restart",
        ("pin",),
    ),
    Code(
        "cuda",
        712,
        "cudaErrorHostMemoryAlreadyRegistered",
        "the memory is page-locked already",
        "look for a second caller",
        ("pin",),
    ),
    Code(
        "cuda",
        713,
        "cudaErrorHostMemoryNotRegistered",
        "it was not page-locked",
        "look at the order",
    ),
    Code(
        "cuda",
        801,
        "cudaErrorNotSupported",
        "the platform cannot page-lock existing memory",
        "use the allocator that pins",
        ("pin",),
    ),
    Code(
        "errno",
        5,
        "EIO",
        "larger than the device's max_mr_size",
        "Mooncake with automatic splitting; MC_MAX_MR_SIZE",
        ("transport",),
    ),
    Code(
        "errno",
        12,
        "ENOMEM",
        "locked memory is used up (limit times NICs), or the device's tables are",
        "ulimit -l unlimited, CAP_IPC_LOCK in the container",
        ("transport",),
    ),
    Code(
        "errno",
        14,
        "EFAULT",
        "not ordinary host memory: a GPU address, or unmapped",
        "nvidia-peermem or dmabuf; check the pointer",
        ("transport",),
    ),
    Code(
        "errno",
        22,
        "EINVAL",
        "the device refuses the range",
        "check driver and flags",
        ("transport",),
    ),
    Code("acl", 103900, "", "Ascend registration failed", "match HDK and CANN", ("transport",)),
    Code(
        "acl", 207000, "", "Ascend does not support it here", "match HDK and CANN", ("transport",)
    ),
    Code(
        "acl",
        207001,
        "",
        "out of memory in Ascend's registration: one call took too much (about 200 GB)",
        "lower the size per rank",
        ("transport", "pin"),
    ),
)
SPACES = {
    "store": "Mooncake store",
    "te": "Mooncake transfer engine",
    "cuda": "CUDA",
    "errno": "errno in a Mooncake line",
    "acl": "Ascend ACL",
}


def meanings(value: int) -> list[Code]:
    """What the number stands for, in every space that knows it."""
    return [code for code in CODES if code.value == value]
