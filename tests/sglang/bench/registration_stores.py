"""SGLang's storage backends, and how each gets the host pools that it registers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import vendors
from registration_bench import AbsentError, Bench, Step, found, storage_config

_FACTORY = "sglang.srt.mem_cache.storage.backend_factory"


@dataclass(frozen=True)
class Store:
    """A storage backend: SGLang's name of it, its configuration, and how it gets its pool."""

    backend: str
    extra: dict[str, Any] = field(default_factory=dict)
    allocator: str = "default"
    env: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    """An attribute of the class that only releases with this way have."""
    way: str = "pool"
    """``pool``: register_mem_pool_host; ``v2``: after that, register_mem_host_pool_v2 with the
    draft's pool; ``buffers``: NIXL's register_buffers, which every transfer calls."""


def store_step(bench: Bench, store: Store) -> Step:
    """Create the backend and register with it, as ``attach_storage_backend`` does."""
    factory = found(_FACTORY, "StorageBackendFactory")
    if store.backend not in factory._registry:
        raise AbsentError
    kind = factory._registry[store.backend]["loader"]()
    if not hasattr(kind, store.needs or "__init__"):
        raise AbsentError
    if store.way == "v2" and "register_mem_host_pool_v2" not in vars(kind):
        raise AbsentError  # HiCacheStorage's own only remembers the pool
    bench.prepare(store.backend, kind)
    failing = vendors.fails() and store.backend == "tensorcast"
    step = Step(kind, lambda: None, before=len(vendors.REGISTERED))
    with vendors.answering(failure=False):
        pool = bench.host_pool(store.allocator)
    if failing:  # memory of the vendor is there, but the pool has other memory
        step.before, pool = len(vendors.REGISTERED), bench.host_pool()

    def attach() -> Any:
        backend = factory.create_backend(store.backend, storage_config(dict(store.extra)), pool)
        bench.kept.append(backend)
        step.owner = backend
        return backend.register_mem_pool_host(pool)

    step.call = attach
    if store.way == "pool":
        return step
    with vendors.answering(failure=False):
        attach()
    step.before = len(vendors.REGISTERED)
    if store.way == "buffers":
        pair = (pool.kv_buffer.data_ptr(), pool.kv_buffer.numel() * pool.kv_buffer.element_size())
        step.call = lambda: step.owner.register_buffers([pair])
        return step
    names = found("sglang.srt.mem_cache.hicache_storage", "PoolName")
    draft = bench.host_pool(store.allocator, draft=True)
    name = getattr(names, "DRAFT", names.MAMBA)
    step.call = lambda: step.owner.register_mem_host_pool_v2(draft, name)
    return step


_CLUSTER = {"master_address": "127.0.0.1:1"}
_ALONE = {"UMBP_STANDALONE_ADDRESS": "127.0.0.1:1"}
STORES = {
    "file": Store("file"),
    "sim": Store("sim"),
    "shm": Store("shm"),
    "nixl": Store("nixl"),
    "nixl.v2": Store("nixl", way="v2"),
    "nixl.buffers": Store("nixl", way="buffers", needs="register_buffers"),
    "eic": Store("eic"),
    "simm": Store("simm", {"manager_address": "127.0.0.1:1"}),
    "hf3fs": Store("hf3fs", {"use_mock_hf3fs_client": True}),
    "hf3fs.v2": Store("hf3fs", {"use_mock_hf3fs_client": True}, way="v2"),
    "aibrix": Store("aibrix"),
    "npu_memcache": Store("npu_memcache"),
    "npu_memcache.v2": Store("npu_memcache", way="v2"),
    "mori": Store("mori", _CLUSTER, "mori"),
    "mori.v2": Store("mori", _CLUSTER, "mori", way="v2"),
    "mori.local": Store("mori", {}, "mori"),
    "mori.standalone": Store("mori", {}, "mori", _ALONE, needs="_buffer_extent"),
    "tensorcast": Store(
        "tensorcast", {"tensorcast": {"daemon_address": "127.0.0.1:1"}}, "tensorcast"
    ),
    "seaweedfs": Store("seaweedfs", {"endpoint": "http://127.0.0.1:1"}),
}
