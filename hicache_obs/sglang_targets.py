"""Which hook point lives where in which SGLang release: one table, data only.

Read from the wheels of the releases named in ``RELEASES``. A release between two rows has the
names of the older one; a newer one than all is tried with the newest row, and what it no longer
has is counted as missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

RELEASES = (
    "0.5.11",
    "0.5.12",
    "0.5.13",
    "0.5.14",
    "0.5.15.post1",
    "0.5.16",
    "0.5.18",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
"""The releases that the tests run."""

_SRT = "sglang.srt."
_MC = _SRT + "mem_cache."
_STORE = _MC + "storage.mooncake_store.mooncake_store"


@dataclass(frozen=True)
class Target:
    """A hook point in a range of releases: *module* and dotted *name* inside it.

    *since* and *until* are releases, both included; *until* "" means: still so.
    """

    point: str
    module: str
    name: str
    since: str = "0.5.11"
    until: str = ""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


TARGETS = (
    Target("worker", _SRT + "managers.scheduler", "Scheduler.__init__"),
    # Host pool constructors; all raise when the memory cannot be had. The asymmetric MHA pool
    # (0.5.14 and later) has no constructor of its own: it is built by MHA's.
    Target("host_pool", _MC + "memory_pool_host", "HostKVCache.__init__", until="0.5.13"),
    Target("host_pool", _MC + "pool_host.base", "HostKVCache.__init__", since="0.5.14"),
    Target("host_pool", _MC + "memory_pool_host", "MHATokenToKVPoolHost.__init__", until="0.5.15"),
    Target("host_pool", _MC + "pool_host.mha", "MHATokenToKVPoolHost.__init__", since="0.5.16"),
    Target("host_pool", _MC + "memory_pool_host", "MLATokenToKVPoolHost.__init__", until="0.5.15"),
    Target("host_pool", _MC + "pool_host.mla", "MLATokenToKVPoolHost.__init__", since="0.5.16"),
    Target("pool_destroy", _MC + "pool_host.base", "HostKVCache.destroy", since="0.5.14"),
    # Allocators.
    Target(
        "allocator_choice", _MC + "memory_pool_host", "get_allocator_from_storage", until="0.5.13"
    ),
    Target(
        "allocator_choice", _MC + "pool_host.common", "get_allocator_from_storage", since="0.5.14"
    ),
    Target("allocate", _MC + "memory_pool_host", "HostTensorAllocator.allocate", until="0.5.13"),
    Target("allocate", _MC + "pool_host.common", "HostTensorAllocator.allocate", since="0.5.14"),
    Target("allocate", _STORE, "MooncakeHostTensorAllocator.allocate"),
    Target("pin", _MC + "pool_host.common", "_cuda_host_register", since="0.5.14"),
    # One transfer engine a rank. AscendTransferEngine has an `initialize` of its own.
    Target(
        "transfer_engine",
        _SRT + "distributed.device_communicators.mooncake_transfer_engine",
        "MooncakeTransferEngine.initialize",
    ),
    # The store. MooncakeStore calls super().register_buffer, so the base is the place.
    Target("store_init", _STORE, "MooncakeStore.__init__"),
    Target("store_warmup", _STORE, "MooncakeStore.warmup"),
    Target("register_anchor", _STORE, "MooncakeStore.register_mem_pool_host"),
    Target("register_side_pool", _STORE, "MooncakeStore.register_mem_host_pool_v2"),
    Target("register_buffer", _STORE, "MooncakeBaseStore.register_buffer"),
    # The draft builders.
    Target(
        "draft_builder",
        _SRT + "managers.scheduler",
        "Scheduler._maybe_register_hicache_draft",
        until="0.5.12",
    ),
    Target(
        "draft_builder",
        _MC + "kv_cache_builder",
        "maybe_register_hicache_draft",
        since="0.5.13",
    ),
)

_RELEASE = re.compile(r"^(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?")


def release_key(release: str) -> tuple[int, int, int]:
    """``0.5.15.post1`` as ``(0, 5, 15)``: a post release has the names of its release.

    Raises:
        ValueError: *release* does not begin with three numbers.
    """
    match = _RELEASE.match(release)
    if match is None:
        raise ValueError(f"{release!r} is no SGLang release such as 0.5.14")
    major, minor, patch = (int(part) for part in match.groups()[:3])
    return major, minor, patch


def targets_for(release: str) -> tuple[Target, ...]:
    """The hook points of *release*; those of the newest known one where it cannot be read."""
    try:
        key = release_key(release)
    except ValueError:
        key = release_key(RELEASES[-1])
    key = max(key, release_key(RELEASES[0]))
    return tuple(
        target
        for target in TARGETS
        if release_key(target.since) <= key
        and (not target.until or key <= release_key(target.until))
    )
