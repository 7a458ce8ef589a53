"""Every cause, in words: what it means and what to do first.

The words that ``classify`` and the exporter put into the label ``cause``. The README's table, the
status page and ``hicache-obs explain`` are made from this one.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """*name* as in the label; *meaning* and *action* for a person who was just woken."""

    name: str
    meaning: str
    action: str


_TABLE = (
    # Registration, standalone (mooncake dummy_client.cpp)
    Cause(
        "foreign_buffer",
        "the buffer is in no segment of the standalone Mooncake client: another allocator made it",
        "give the pool Mooncake's allocator: for a draft keep HICACHE_OBS_DRAFT_FIX=auto or run "
        "SGLang 0.5.15 or later; after a fallback install Mooncake 0.3.8.post1 or later",
    ),
    Cause(
        "segment_size_mismatch",
        "part of a segment was registered, and a standalone client takes whole segments only",
        "SGLang 0.5.21 to 0.5.23 do this with an MHA target: use an embedded store "
        "(standalone_storage false) or SGLang 0.5.20",
    ),
    Cause(
        "client_unreachable",
        "the standalone Mooncake client does not accept connections",
        "start mooncake_client or look why it ended; check client_server_address, host network "
        "and that both share the network namespace",
    ),
    Cause(
        "ipc_or_remote_map",
        "the standalone client refused, and only its own log says why",
        "read the Mooncake lines just before the failure, and the log of mooncake_client",
    ),
    # Registration, embedded (mooncake real_client.cpp)
    Cause(
        "overlap",
        "a registered buffer shares bytes with this one",
        "look for two pools over one buffer in hicache_host_pool_info; restart the server",
    ),
    Cause(
        "transport",
        "the transfer engine refused, and only Mooncake's log says why",
        "read the Mooncake lines just before: errno 12 is ulimit -l, 14 memory that a NIC cannot "
        "reach, 22 a device that refuses; check protocol and device_name",
    ),
    Cause(
        "master_unreachable",
        "the Mooncake master does not accept connections",
        "start mooncake_master or look why it ended; check master_server_address and the network",
    ),
    Cause(
        "empty_buffer",
        "a buffer of no bytes was registered",
        "look at the pool's size: --hicache-size and --hicache-ratio",
    ),
    # Registration, any mode (the same; SGLang mooncake_store.py register_buffer)
    Cause(
        "null_pointer",
        "there is no memory behind the buffer: its allocation failed without an error",
        "look at the allocation before it and at the memory limit",
    ),
    Cause(
        "not_initialized",
        "the store was used before it was set up, or after its set-up failed",
        "find the first failure of stage setup; this one follows from it",
    ),
    Cause(
        "unsupported_buffer_shape",
        "the pool has no buffer of the kind that SGLang registers",
        "drafts with asymmetric K and V heads do this, and the fixed builder does not cover them: "
        "run without the draft, or without a storage backend",
    ),
    Cause(
        "unknown",
        "a code without anything to judge it by: the buffer's address could not be read",
        "read the exception and the Mooncake lines just before",
    ),
    Cause("exception", "SGLang raised, and no code came with it", "read the exception's text"),
    # Set-up (SGLang mooncake_store.py, MooncakeStore.__init__)
    Cause(
        "allocator_required",
        "a standalone store wants Mooncake's allocator, and the target pool has another",
        "install Mooncake 0.3.8.post1 or later; keep --hicache-storage-backend mooncake",
    ),
    Cause(
        "logical_anchor",
        "a standalone store wants Mooncake's allocator of a target pool that is logical: it has "
        "neither memory nor allocator (DeepSeek-V4)",
        "use an embedded store (standalone_storage false) with this model; another Mooncake does "
        "not help",
    ),
    Cause(
        "mooncake_missing",
        "the Mooncake library cannot be imported",
        "install mooncake-transfer-engine into the image of the worker",
    ),
    Cause(
        "warmup_failed",
        "the store was set up, but a first put or get did not work",
        "look at the master: has it a segment with room? then at the log of the client",
    ),
    Cause(
        "bad_config",
        "the store's configuration cannot be read",
        "check --hicache-storage-backend-extra-config or SGLANG_HICACHE_MOONCAKE_CONFIG_PATH",
    ),
    # A storage backend beside Mooncake, or attached at run time
    Cause(
        "backend_missing",
        "the storage backend's library cannot be imported",
        "install the vendor's package into the image of the worker",
    ),
    Cause(
        "refused",
        "the backend's library did not take the pool's memory",
        "read the library's log; where SGLang goes on, transfers fall back to a copy, or fail",
    ),
    # Allocation and page-locking (SGLang pool_host/; mooncake shm_helper.cpp)
    Cause(
        "budget",
        "SGLang found less free memory than the pool needs and its reserve",
        "lower --hicache-size or --hicache-ratio (every rank, and the draft, asks for its own), "
        "or give the host more memory",
    ),
    Cause(
        "too_small",
        "the host pool would hold less than the GPU's KV pool, which SGLang up to 0.5.14 refuses",
        "raise --hicache-size, or set --hicache-ratio above 1",
    ),
    Cause(
        "mmap",
        "the kernel gave no memory for the pool",
        "check the container's memory limit, ulimit -v and, with huge pages, how many are free",
    ),
    Cause(
        "pin",
        "the pool's memory could not be page-locked (cudaHostRegister)",
        "code 1 or 2 with free memory is a limit of one call: lower the size per rank; else "
        "ulimit -l unlimited, and dmesg",
    ),
    Cause(
        "allocator_error",
        "Mooncake's allocator could not make shared memory",
        "read the exception: too many open files is ulimit -n, too large is ulimit -f",
    ),
    # Told by the exporter, after a death (hicache_obs/exporter/verdict.py)
    Cause(
        "crashed_in_call",
        "the process ended inside a native call: a crash, or somebody killed it there",
        "look for the signal in dmesg or the container's status; a segmentation fault in "
        "register_buffer means a store that was not set up",
    ),
    Cause(
        "oom_suspected",
        "the process ended while it asked for more memory than its limit had left",
        "compare bytes with the limit: lower --hicache-size or --hicache-ratio, or raise the "
        "container's memory limit; dmesg names the process that the kernel killed",
    ),
    Cause(
        "peer",
        "the rank ended because another rank of its server had failed",
        "nothing here: look at the rank that failed",
    ),
)
CAUSES = {cause.name: cause for cause in _TABLE}


def explain(name: str) -> Cause:
    """The cause of that name; a plain answer for one that we do not know."""
    return CAUSES.get(name) or Cause(
        name, "not a cause of this version", "read the exception's text"
    )
