"""Known failure lines of SGLang, Mooncake, the kernel and our own, and the causes that they tell.

Texts as SGLang 0.5.11 to 0.5.23 and Mooncake 0.3.13.post1 print them; *source* names the file, or
the public report of a line not seen here.
"""

from __future__ import annotations

from hicache_obs.known_line import AFTER, REFUSAL, WORSE
from hicache_obs.known_line import line as _line

_STORE = "SGLang mem_cache/storage/mooncake_store/mooncake_store.py"
_STANDALONE = "Mooncake dummy_client.cpp"

LINES = (
    # Our own
    _line(
        r"hicache-obs: registration of the \w+ host pool \(.*failed: "
        r"code (?:none|(?P<code>-?\d+)), cause (?P<cause>\w+)",
        "hicache-obs told the cause when it happened",
        "hicache_obs/hooks/registration.py",
        space="store",
    ),
    _line(
        r"hicache-obs: the \w+ host pool .* is needed \((?:draft_differs_from_target|bypassed)\)",
        "this pool's memory cannot be registered",
        "hicache_obs/hooks/mismatch.py",
        tells="foreign_buffer",
    ),
    _line(
        r"hicache-obs: the \w+ host pool .* is needed \((?:fallback|backend_requires)\)",
        "this pool's allocator is not the store's",
        "hicache_obs/hooks/mismatch.py",
        tells="allocator_required",
    ),
    # Registration of a buffer
    _line(
        r"Buffer is not in any registered shared memory",
        "the standalone client does not know this memory",
        _STANDALONE,
        tells="foreign_buffer",
    ),
    _line(
        r"Invalid buffer address or size for registration",
        "the buffer is not a whole segment",
        _STANDALONE,
        tells="segment_size_mismatch",
    ),
    _line(
        r"dummy_client\.cpp:\d+\] Invalid buffer pointer",
        "the buffer has no address",
        _STANDALONE,
        tells="null_pointer",
    ),
    _line(
        r"Failed to (?:implicitly )?register (?:new )?SHM via IPC|RealClient failed to map shared",
        "the client could not map the worker's segment",
        _STANDALONE,
        tells="ipc_or_remote_map",
    ),
    _line(
        r"Transfer Engine does not support overlapped memory region",
        "a registered buffer shares bytes with this one",
        "Mooncake transfer_engine_impl.cpp",
        tells="overlap",
    ),
    _line(
        r"Transfer Engine does not support zero length memory region",
        "a buffer of no bytes was registered",
        "Mooncake transfer_engine_impl.cpp",
        tells="empty_buffer",
    ),
    _line(
        r"Failed to register memory 0x[0-9a-f]+: .*\[(?P<code>\d+)\]",
        "the RDMA device refused the memory",
        "Mooncake rdma_context.cpp (issues 281, 1382)",
        tells="transport",
        space="errno",
    ),
    _line(
        r"Register mem ret:(?P<code>\d+)|register ptr failed",
        "Ascend refused the memory",
        "Mooncake issues 1854, 4046; LMCache-Ascend issue 242",
        tells="transport",
        space="acl",
    ),
    _line(
        r"Mooncake memory registration failed(?: \(ret=(?P<code>-?\d+))?",
        "the transfer engine refused a buffer",
        "SGLang distributed/device_communicators/mooncake_transfer_engine.py",
        may_be="transport overlap",
        rank=REFUSAL,
        space="te",
    ),
    _line(
        r"Failed to register buffer(?: to Mooncake Store)?, error code: (?P<code>-?\d+)",
        "Mooncake refused a buffer",
        _STORE,
        rank=REFUSAL,
        space="store",
    ),
    _line(
        r"AttributeError: .* has no attribute '(?:kv_buffer|get_page_buffer_meta)'",
        "the pool has no buffer that SGLang registers",
        "SGLang mem_cache/base_hicache_storage.py and pools",
        tells="unsupported_buffer_shape",
    ),
    _line(
        r"Mooncake store is not initialized\.",
        "the store was used before it was set up",
        _STORE,
        tells="not_initialized",
        rank=AFTER,
    ),
    # Set-up of the store
    _line(
        r"requires MooncakeHostTensorAllocator",
        "the standalone store refused the target's allocator",
        _STORE,
        tells="allocator_required",
    ),
    _line(
        r"Fallback to use default allocator",
        "the storage's allocator cannot be imported, so SGLang took its own: harmless with an "
        "embedded store, fatal with a standalone one",
        "SGLang mem_cache/pool_host/common.py",
        may_be="allocator_required foreign_buffer",
    ),
    _line(
        r"Please install mooncake by following the instructions",
        "the Mooncake library cannot be imported",
        _STORE,
        tells="mooncake_missing",
    ),
    _line(
        r"dummy_client\.cpp:\d+\] (?:Dummy Client not available|Failed to connect to real client)",
        "the standalone client does not answer",
        _STANDALONE,
        tells="client_unreachable",
    ),
    _line(
        r"master_client\.cpp:\d+\] Client not available|Launch mooncake store server timeout",
        "the master does not answer",
        "Mooncake master_client.cpp; " + _STORE,
        tells="master_unreachable",
    ),
    _line(
        r"Failed to setup Mooncake store, error code: (?P<code>-1)\b",
        "the store, most likely a standalone client, could not be set up",
        _STORE,
        may_be="client_unreachable ipc_or_remote_map transport",
        rank=REFUSAL,
        space="store",
    ),
    _line(
        r"Failed to setup Mooncake store, error code: (?P<code>-(?!1\b)\d+)",
        "the embedded store could not be set up",
        _STORE,
        may_be="master_unreachable transport",
        rank=REFUSAL,
        space="store",
    ),
    _line(
        r"Warmup put failed after \d+ attempts",
        "a first put did not work, ten times",
        _STORE,
        may_be="warmup_failed master_unreachable client_unreachable",
        rank=REFUSAL,
    ),
    _line(
        r"Config file path not set\. Please set|Failed to load config from|"
        r"Configuration loading failed: (?!Launch mooncake)|"
        r"(?:master_server_address or client_server_address|'MOONCAKE_CLIENT') is (?:not set|req)",
        "the store's configuration cannot be read",
        _STORE,
        tells="bad_config",
    ),
    _line(
        r"NotSupportedTransport",
        "the two sides speak different protocols (rdma and tcp)",
        "Mooncake common/base/status.h (issues 553, 882)",
        tells="transport",
    ),
    _line(
        r"No RDMA devices found",
        "Mooncake sees no RDMA device: with protocol rdma the transfer engine takes TCP in "
        "silence and the store refuses; with protocol tcp this is as it should be",
        "Mooncake topology.cpp",
        may_be="transport",
        rank=WORSE,
    ),
    # Memory of a host pool
    _line(
        r"Not enough host memory (?:available|for).*Requesting .* but only have",
        "SGLang's own check refused the size of a host pool",
        "SGLang mem_cache/memory_pool_host.py, pool_host/",
        tells="budget",
    ),
    _line(
        r"host memory should be larger than the device memory",
        "SGLang's own check refused the size of a host pool",
        "SGLang mem_cache/memory_pool_host.py, pool_host/base.py (up to 0.5.14)",
        tells="too_small",
    ),
    _line(
        r"cudaHostRegister failed \((?:rc|code)=(?P<code>\d+)",
        "a host pool could not be page-locked",
        "SGLang mem_cache/pool_host/common.py",
        tells="pin",
        space="cuda",
    ),
    _line(
        r"CUDA error: invalid argument",
        "PyTorch could not page-lock memory, or another CUDA call failed",
        "SGLang issues 6285, 7666",
        may_be="pin",
    ),
    _line(
        r"Failed to map shared memory: |OSError: \[Errno 12\]|"
        r"[Cc]an(?:'t|not) allocate memory: you tried|^MemoryError",
        "the kernel gave no memory for a host pool",
        "Mooncake shm_helper.cpp; Python mmap; PyTorch",
        tells="mmap",
    ),
    _line(
        r"Failed to (?:create anonymous shared memory|set shared memory size): ",
        "Mooncake could not make shared memory",
        "Mooncake shm_helper.cpp",
        tells="allocator_error",
    ),
    _line(
        r"MooncakeHostMemAllocator\.alloc returned a null|\(\d+ bytes\) returned a null pointer",
        "the kernel gave no memory for a host pool",
        _STORE + " of 0.5.23",
        tells="null_pointer",
    ),
    _line(
        r"Hugepage mmap .*falling back to plain mmap",
        "no huge pages were free: the pool has ordinary pages",
        "SGLang mem_cache/mmap_allocator.py",
        rank=WORSE,
    ),
    # The end of a process
    _line(
        r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory|OOMKilled",
        "the kernel killed a process for its memory",
        "Linux",
        tells="oom_suspected",
    ),
    _line(
        r"Fatal Python error: (?:Segmentation fault|Bus error|Aborted)|exit code: -(?:11|7|6)\)",
        "a process crashed in native code",
        "Python faulthandler; SGLang entrypoints/engine.py",
        tells="crashed_in_call",
    ),
    _line(
        r"scheduler died during initialization \(exit code: -9\)",
        "a scheduler was killed (SIGKILL)",
        "SGLang entrypoints/engine.py",
        may_be="oom_suspected crashed_in_call",
        rank=REFUSAL,
    ),
    _line(
        r"Received sigquit from a child process|Scheduler hit an exception",
        "SGLang ends the whole server when one process fails: look above",
        "SGLang entrypoints/engine.py, managers/scheduler.py",
        rank=AFTER,
    ),
)
