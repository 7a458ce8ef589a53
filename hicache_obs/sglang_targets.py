"""Which hook point lives where in which SGLang release: one table, data only.

Read from the wheels of the releases named in ``RELEASES``. A release between two rows has the
names of the older one; a newer one than all is tried with the newest row, and what it no longer
has is counted as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hicache_obs import sglang_pools
from hicache_obs.sglang_pools import Place

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
_OLD = _MC + "memory_pool_host"
_COMMON = (Place(_OLD, "0.5.11", "0.5.13"), Place(_MC + "pool_host.common", "0.5.14"))
_SHM = (Place(_MC + "pool_host.common", "0.5.18"),)
_UMBP = (Place(_MC + "storage.umbp.umbp_host_allocator", "0.5.15"),)
_TENSORCAST = (Place(_MC + "storage.tensorcast_store.host_allocator", "0.5.21"),)
_MEMFABRIC = (Place(_MC + "pool_host.npu_memfabric", "0.5.20"),)
_MMAP = (
    Place(_MC + "mmap_allocator", "0.5.13", "0.5.16"),
    Place(_MC + "storage.mmap.mmap_allocator", "0.5.18"),
)
_CONTROLLER = _SRT + "managers.cache_controller"
_HYBRID = _MC + "hybrid_cache.hybrid_cache_controller"
_STORE = _MC + "storage.mooncake_store.mooncake_store"


VENDORS = ("torch", "mooncake", "memfabric_hybrid")
"""Packages beside SGLang; a process that never imports one lacks nothing."""


@dataclass(frozen=True)
class Target:
    """A hook point in a range of releases: *module* and dotted *name* inside it.

    *since* and *until* are releases, both included; *until* "" means: still so. *table*: a
    dictionary of functions in the same module that holds the function too.
    """

    point: str
    module: str
    name: str
    since: str = "0.5.11"
    until: str = ""
    table: str = ""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def of_vendor(self) -> bool:
        """Whether it is in a package beside SGLang, which a process may never import."""
        return self.module.partition(".")[0] in VENDORS


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


def _at(
    point: str, places: tuple[Place, ...], name: str, since: str = "", table: str = ""
) -> Iterator[Target]:
    """A row a place, those before *since* left out."""
    for place in places:
        if not since or not place.until or release_key(since) <= release_key(place.until):
            first = max(place.since, since, key=release_key) if since else place.since
            yield Target(point, place.module, name, first, place.until, table)


def _engine(module: str) -> Iterator[Target]:
    for name in ("register", "batch_register", "unregister", "batch_unregister"):
        yield Target(f"te_{name}", module, f"TransferEngine.{name}_memory")


def _pools() -> Iterator[Target]:
    for pool in sglang_pools.POOL_CLASSES:
        yield from _at("host_pool", pool.places, f"{pool.name}.__init__")
        if pool.destroy:
            yield from _at("pool_destroy", pool.places, f"{pool.name}.destroy", pool.destroy)


TARGETS = (
    Target("worker", _SRT + "managers.scheduler", "Scheduler.__init__"),
    # Host pools: sglang_pools lists the classes. All constructors raise when the memory cannot
    # be had.
    *_pools(),
    *_at("host_backing", sglang_pools.BACKING, "_SharedPageEnvelopeHostBacking.__init__"),
    *_at("pool_group", sglang_pools.GROUP, "HostPoolGroup.__init__"),
    *_at("pool_group_entry", sglang_pools.GROUP, "HostPoolGroup.add_entry", since="0.5.18"),
    # Owners of host pools outside the cache tree.
    Target(
        "decode_offload",
        _SRT + "disaggregation.decode_kvcache_offload_manager",
        "DecodeKVCacheOffloadManager.__init__",
    ),
    Target("hisparse", _SRT + "managers.hisparse_coordinator", "HiSparseCoordinator.__init__"),
    # Allocators.
    *_at("allocator_choice", _COMMON, "get_allocator_from_storage"),
    *_at("allocate", _COMMON, "HostTensorAllocator.allocate"),
    Target("allocate", _STORE, "MooncakeHostTensorAllocator.allocate"),
    *_at("allocate", _SHM, "ShmHostTensorAllocator.allocate"),
    *_at("allocate", _UMBP, "UMBPHostTensorAllocator.allocate"),
    *_at("allocate", _TENSORCAST, "TensorcastHostTensorAllocator.allocate"),
    # Memory past the allocator: NPU, MUSA and XPU, ROCm's GTT, NPU's memfabric.
    *_at("allocate_pinned", _COMMON, "alloc_with_pin_memory", table="ALLOC_MEMORY_FUNCS"),
    *_at("allocate_hip", _COMMON, "_alloc_hip_host_tensor", since="0.5.22"),
    *_at("allocate_memfabric", _MEMFABRIC, "alloc_with_memfabric"),
    # Huge pages that were asked for; alloc_shm cannot have any.
    *_at("hugepages", _MMAP, "_alloc_hugepage"),
    *_at("hugepages_shm", _MMAP, "alloc_shm", since="0.5.18"),
    # Page-locking.
    *_at("pin", _COMMON, "_cuda_host_register", since="0.5.14"),
    Target("pin_inline", _OLD, "alloc_with_host_register", until="0.5.13"),
    Target(
        "pin_inline",
        _MC + "hisparse_memory_pool",
        "DeepSeekV4SingleKVPoolHost.init_kv_buffer",
        since="0.5.12",
        until="0.5.12",
    ),
    Target("cudart", "torch.cuda", "cudart"),
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
    Target(
        "direct_linker",
        _MC + "storage.mooncake_store.mooncake_direct_linker",
        "MooncakeDirectLinker.register_buffers",
        since="0.5.20",
    ),
    # Mooncake's native methods, and those of Ascend's engine of the same shape: SGLang's wrappers
    # log a failure at debug level and go on.
    Target("store_native", "mooncake.store", "MooncakeDistributedStore.register_buffer"),
    *_engine("mooncake.engine"),
    *_engine("memfabric_hybrid"),
    # The storage backend of the cache.
    Target(
        "create_backend",
        _MC + "storage.backend_factory",
        "StorageBackendFactory.create_backend",
    ),
    *(
        Target(f"{what}tach", module, f"{cls}.{what}tach_storage_backend", since)
        for what, module, cls, since in (
            ("at", _CONTROLLER, "HiCacheController", "0.5.11"),
            ("at", _HYBRID, "HybridCacheController", "0.5.11"),
            ("de", _CONTROLLER, "HiCacheController", "0.5.11"),
        )
    ),
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


PARAMETERS: dict[str, tuple[tuple[int, str], ...]] = {
    "pool_group": ((1, "entries"),),
    "pool_group_entry": ((1, "entry"),),
    "allocator_choice": ((0, "allocator_type"),),
    "allocate": ((1, "dims"), (2, "dtype")),
    "allocate_pinned": ((0, "dims"), (1, "dtype"), (3, "pin_memory")),
    "allocate_hip": ((0, "dims"), (1, "dtype")),
    "allocate_memfabric": ((0, "dims"), (1, "dtype")),
    "pin": ((0, "buffer"),),
    "transfer_engine": ((2, "device_name"),),
    "register_anchor": ((1, "mem_pool_host"),),
    "register_side_pool": ((1, "host_pool"), (2, "host_pool_name")),
    "register_buffer": ((1, "tensor"),),
    "create_backend": ((1, "backend_name"),),
    "attach": ((1, "storage_backend"),),
}
"""The parameters that the observer of a point reads, by place and name; alike in all releases."""


def targets_for(release: str) -> tuple[Target, ...]:
    """The hook points of *release*; those of the newest known one where it cannot be read."""
    try:
        key = release_key(release)
    except ValueError:
        key = release_key(RELEASES[-1])
    known = [release_key(row) for row in RELEASES]
    key = max((row for row in known if row <= key), default=known[0])
    return tuple(
        target
        for target in TARGETS
        if release_key(target.since) <= key
        and (not target.until or key <= release_key(target.until))
    )
