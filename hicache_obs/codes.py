"""Return codes of the libraries below a host pool: name, meaning, what to do.

The same number means different things in different libraries, so a code has a *space*:

- ``store``: Mooncake's mooncake-store/include/types.h, ErrorCode;
- ``te``: Mooncake's mooncake-transfer-engine/include/error.h;
- ``cuda``: cudaError of CUDA 12.9's driver_types.h, seen as ``rc=`` in SGLang's
  mem_cache/pool_host/common.py;
- ``errno``: the number that Mooncake's rdma_context.cpp prints behind "Failed to register memory";
- ``acl``: Ascend, from public reports (Mooncake issues 1854 and 4046, LMCache-Ascend issue 242).

Which code leaves which call was read and tried with Mooncake 0.3.13.post1: a standalone client
answers ``register_buffer`` with 0 or -1 and nothing else (dummy_client.cpp), an embedded one with
0 or -600 (real_client.cpp).
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """*name* is "-" where none is known; *causes*: those that the code may stand for, the most
    frequent first."""

    space: str
    value: int
    name: str
    meaning: str
    action: str
    causes: tuple[str, ...] = ()


SPACES = {
    "store": "Mooncake store",
    "te": "Mooncake transfer engine",
    "cuda": "CUDA",
    "errno": "errno in a Mooncake line",
    "acl": "Ascend ACL",
}

_REFUSED_STANDALONE = (
    "foreign_buffer",
    "segment_size_mismatch",
    "client_unreachable",
    "null_pointer",
    "not_initialized",
    "ipc_or_remote_map",
)
_REFUSED_EMBEDDED = (
    "master_unreachable",
    "overlap",
    "transport",
    "empty_buffer",
    "null_pointer",
    "not_initialized",
)
_UNREACHABLE = ("client_unreachable", "master_unreachable")
_SEE_CAUSE = "look at the label cause; without it, read the Mooncake lines just before"


def _alike(
    space: str, named: str, meaning: str, action: str, causes: tuple[str, ...] = ()
) -> tuple[Code, ...]:
    """Codes that call for the same thing; *named* holds value and name of each in turn."""
    words = named.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return tuple(Code(space, int(value), name, meaning, action, causes) for value, name in pairs)


_STORE = (
    Code("store", 0, "OK", "it worked", "nothing"),
    Code(
        "store",
        -1,
        "INTERNAL_ERROR",
        "a standalone client's only refusal, whatever the reason; or an embedded one found no port",
        _SEE_CAUSE,
        _REFUSED_STANDALONE,
    ),
    Code("store", -10, "BUFFER_OVERFLOW", "the local buffer is full", "raise local_buffer_size"),
    *_alike(
        "store",
        "-101 SEGMENT_NOT_FOUND -103 CLIENT_NOT_FOUND",
        "the master does not know this client (any more)",
        "restart the client; if the master was restarted, the clients must be too",
    ),
    Code(
        "store",
        -102,
        "SEGMENT_ALREADY_EXISTS",
        "another client has a segment of this host and port",
        "give each client its own port; after a restart wait until the old one has expired",
    ),
    Code("store", -200, "NO_AVAILABLE_HANDLE", "the store is full", "add segment memory"),
    Code(
        "store",
        -600,
        "INVALID_PARAMS",
        "an embedded client's refusal of a buffer or of its set-up, for nearly any reason",
        _SEE_CAUSE,
        _REFUSED_EMBEDDED,
    ),
    Code(
        "store", -601, "ILLEGAL_CLIENT", "the client may not do this", "check who owns the object"
    ),
    *_alike(
        "store",
        "-300 INVALID_VERSION -400 INVALID_KEY -500 WRITE_FAIL -700 INVALID_WRITE "
        "-701 INVALID_READ -702 INVALID_REPLICA -703 REPLICA_IS_NOT_READY "
        "-704 OBJECT_NOT_FOUND -705 OBJECT_ALREADY_EXISTS -706 OBJECT_HAS_LEASE",
        "a put or get failed; no set-up or registration answers this",
        "read the log of the client that holds the object",
    ),
    Code(
        "store",
        -800,
        "TRANSFER_FAIL",
        "a transfer failed; often its buffer was never registered",
        "look at hicache_pool_registered",
    ),
    *_alike(
        "store",
        "-900 RPC_FAIL -901 RPC_TIMEOUT",
        "the client or the master does not answer, or too late",
        "start it, or look at its load; then check the network between them",
        _UNREACHABLE,
    ),
    *_alike(
        "store",
        "-1000 ETCD_OPERATION_ERROR -1001 ETCD_KEY_NOT_EXIST -1002 ETCD_TRANSACTION_FAIL "
        "-1003 ETCD_CTX_CANCELLED",
        "etcd, by which the clients find the master, does not do its work",
        "repair etcd, then restart the client",
        ("master_unreachable",),
    ),
    Code(
        "store",
        -1010,
        "UNAVAILABLE_IN_CURRENT_STATUS",
        "no master leads at this moment",
        "wait for the election; if none ends, look at the masters and etcd",
        ("master_unreachable",),
    ),
    Code("store", -1011, "UNAVAILABLE_IN_CURRENT_MODE", "not in this mode", "check the flags"),
    *_alike(
        "store",
        "-1100 FILE_NOT_FOUND -1101 FILE_OPEN_FAIL -1102 FILE_READ_FAIL -1103 FILE_WRITE_FAIL",
        "the store's disk storage failed",
        "check path, permissions and free space of its directory",
    ),
)

_TE = (
    Code(
        "te",
        0,
        "OK",
        "it worked; that is no proof of RDMA: without a device it takes TCP and says 0",
        "look for TcpTransport in the log",
    ),
    Code("te", -1, "INVALID_ARGUMENT", "a bad argument, or no metadata server", "check addresses"),
    Code("te", -3, "ADDRESS_NOT_REGISTERED", "the buffer is not registered", "register it first"),
    Code("te", -6, "DEVICE_NOT_FOUND", "no such device", "compare device_name with ibv_devices"),
    Code(
        "te",
        -7,
        "ADDRESS_OVERLAPPED",
        "a registered buffer shares bytes with this one",
        "look for two pools over one buffer",
        ("overlap",),
    ),
    Code("te", -101, "DNS", "a host name cannot be resolved", "check local_hostname"),
    *_alike(
        "te",
        "-102 SOCKET -103 MALFORMED_JSON -104 REJECT_HANDSHAKE",
        "the other side cannot be reached, or is no Mooncake of this release",
        "check port, network and that both sides run one release",
    ),
    Code("te", -200, "METADATA", "the metadata server failed", "check metadata_server"),
    Code("te", -201, "ENDPOINT", "no connection to the peer's NIC", "check the RDMA fabric"),
    Code(
        "te", -202, "CONTEXT", "ibv_reg_mr failed", "see errno in the line before", ("transport",)
    ),
    Code("te", -302, "MEMORY", "no memory", "ulimit -l unlimited", ("transport",)),
    *_alike(
        "te",
        "-300 NUMA -301 CLOCK -303 NOT_IMPLEMENTED",
        "this build or this host cannot do it",
        "compare protocol with what this Mooncake was built for",
        ("transport",),
    ),
)

_CUDA = (
    Code("cuda", 0, "cudaSuccess", "it worked: the memory is page-locked", "nothing"),
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
        "a limit on locked memory, or 512 GiB and more in one call (R580 drivers); not GPU memory",
        "ulimit -l unlimited; lower the size per rank",
        ("pin",),
    ),
    *_alike(
        "cuda",
        "3 cudaErrorInitializationError 35 cudaErrorInsufficientDriver "
        "46 cudaErrorDevicesUnavailable 100 cudaErrorNoDevice 101 cudaErrorInvalidDevice "
        "802 cudaErrorSystemNotReady 803 cudaErrorSystemDriverMismatch "
        "804 cudaErrorCompatNotSupportedOnDevice 999 cudaErrorUnknown",
        "no usable GPU: nothing could be page-locked, whatever the size",
        "nvidia-smi in the container; check driver, fabric manager and CUDA_VISIBLE_DEVICES",
        ("pin",),
    ),
    *_alike(
        "cuda",
        "700 cudaErrorIllegalAddress 719 cudaErrorLaunchFailure",
        "an earlier error that sticks to the process; page-locking did not cause it",
        "find the first CUDA error in the log, then restart",
        ("pin",),
    ),
    Code(
        "cuda",
        712,
        "cudaErrorHostMemoryAlreadyRegistered",
        "the memory is page-locked already: two callers over one buffer",
        "look for the second caller; the memory itself is fine",
        ("pin",),
    ),
    Code("cuda", 713, "cudaErrorHostMemoryNotRegistered", "it was not page-locked", "no harm"),
    *_alike(
        "cuda",
        "800 cudaErrorNotPermitted 801 cudaErrorNotSupported",
        "the platform cannot page-lock memory that exists already",
        "look at what the container may do; else run without HiCache on this platform",
        ("pin",),
    ),
)

_ERRNO = (
    *_alike(
        "errno",
        "5 EIO 28 ENOSPC",
        "larger than the device takes in one piece (max_mr_size)",
        "upgrade to a Mooncake that splits the buffer; else lower the size per rank",
        ("transport",),
    ),
    Code(
        "errno",
        12,
        "ENOMEM",
        "locked memory is used up (every NIC counts the buffer again), or the device's tables are",
        "ulimit -l unlimited, and CAP_IPC_LOCK for the container",
        ("transport",),
    ),
    Code(
        "errno",
        14,
        "EFAULT",
        "not ordinary host memory: an address of a GPU, or unmapped",
        "load nvidia-peermem or use a build with dmabuf",
        ("transport",),
    ),
    Code("errno", 22, "EINVAL", "the device refuses it", "check the NIC's driver", ("transport",)),
)

_ACL = (
    *_alike(
        "acl",
        "103900 - 207000 -",
        "Ascend refused to register the memory",
        "match the releases of HDK and CANN",
        ("transport",),
    ),
    Code(
        "acl",
        207001,
        "-",
        "Ascend took no more memory: one call asked for too much (above about 200 GB)",
        "lower the size per rank",
        ("transport", "pin"),
    ),
)

CODES = (*_STORE, *_TE, *_CUDA, *_ERRNO, *_ACL)


def meanings(value: int, space: str = "") -> list[Code]:
    """What the number stands for, in every space that knows it or in *space* only."""
    return [code for code in CODES if code.value == value and space in ("", code.space)]
