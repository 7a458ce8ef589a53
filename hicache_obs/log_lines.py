"""Known lines of SGLang, Mooncake and our own log, and the causes that they tell.

Texts as SGLang 0.5.11 to 0.5.23 and Mooncake 0.3.13.post1 print them (mem_cache/memory_pool_host.py
and pool_host/, storage/mooncake_store/; mooncake dummy_client.cpp, real_client.cpp and the RDMA
transport).
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Line(NamedTuple):
    """A *pattern* and the *causes* it may stand for; *rank* says how close to the root it is:
    0 names the cause itself, 1 narrows it, 2 only follows from another failure."""

    pattern: re.Pattern[str]
    causes: tuple[str, ...]
    rank: int
    says: str


def _line(pattern: str, causes: str, rank: int, says: str) -> Line:
    return Line(re.compile(pattern), tuple(causes.split()), rank, says)


LINES = (
    _line(
        r"hicache-obs: registration of the \w+ host pool .* cause (?P<cause>\w+)",
        "",
        0,
        "hicache-obs told the cause when it happened",
    ),
    _line(
        r"hicache-obs: the \w+ host pool .* has allocator \w+ where \w+ is needed",
        "foreign_buffer",
        0,
        "the pool's allocator is not the one that its registration needs",
    ),
    _line(
        r"Buffer is not in any registered shared memory",
        "foreign_buffer",
        0,
        "the standalone client does not know the memory",
    ),
    _line(
        r"Fallback to use default allocator",
        "foreign_buffer",
        0,
        "Mooncake has no host allocator (before 0.3.8.post1), so SGLang took its own",
    ),
    _line(
        r"requires MooncakeHostTensorAllocator",
        "allocator_required",
        0,
        "the standalone store refused the target's allocator",
    ),
    _line(
        r"Not enough host memory available\. Requesting .* but only have",
        "budget",
        0,
        "SGLang's own check of free memory refused the pool",
    ),
    _line(
        r"cudaHostRegister failed \(rc=\d+|CUDA error: invalid argument",
        "pin",
        0,
        "page-locking failed",
    ),
    _line(
        r"Failed to map shared memory|set shared memory size|Cannot allocate memory \(ENOMEM\)",
        "mmap allocator_error",
        0,
        "the kernel refused memory",
    ),
    _line(
        r"Failed to register memory 0x[0-9a-f]+: .*\[(?P<errno>\d+)\]",
        "transport",
        0,
        "the RDMA device refused the memory; the number is errno",
    ),
    _line(
        r"Register mem ret:\d+|register ptr failed",
        "transport",
        0,
        "Ascend refused the memory",
    ),
    _line(
        r"No RDMA devices found",
        "transport",
        1,
        "there is no RDMA device: the transfer engine takes TCP",
    ),
    _line(r"NotSupportedTransport", "transport", 0, "the two sides speak different protocols"),
    _line(
        r"Failed to setup Mooncake store, error code: (?P<code>-?\d+)",
        "client_unreachable master_unreachable ipc_or_remote_map transport",
        1,
        "the store could not be set up",
    ),
    _line(
        r"Failed to register buffer(?: to Mooncake Store)?, error code: (?P<code>-?\d+)",
        "",
        1,
        "a buffer was refused",
    ),
    _line(
        r"Mooncake memory registration failed",
        "transport",
        1,
        "the transfer engine refused a buffer",
    ),
    _line(
        r"has no attribute '(?:kv_buffer|setup_dummy|batch_get_buffer)'",
        "unsupported_buffer_shape",
        1,
        "SGLang and the pool or Mooncake do not fit",
    ),
    _line(
        r"[Ww]armup failed|Mooncake .*[Ww]armup", "warmup_failed", 1, "a first put or get failed"
    ),
    _line(
        r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory",
        "oom_suspected",
        0,
        "the kernel killed a process for its memory",
    ),
    _line(
        r"Received sigquit from a child process|Scheduler hit an exception",
        "peer",
        2,
        "SGLang ends all ranks when one fails",
    ),
)
