"""Stand-ins for the vendors' libraries that allocate the host memory, or register none of it.

See ``vendors.py``, which puts them into ``sys.modules``.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
from typing import Any

from vendors import Record, take

_HUGEPAGE = 2 << 20


def modules() -> dict[str, dict[str, Any]]:
    """Return the modules of this file, by name."""
    return _mori() | _tensorcast() | _aibrix() | _boto3()


def _enum(name: str, *members: str) -> Any:
    return enum.Enum(name, list(members))  # type: ignore[misc]


def _mori() -> dict[str, dict[str, Any]]:
    """``mori.umbp`` as storage/umbp/{umbp_store,umbp_direct_linker,umbp_host_allocator}.py call it.

    ``register_memory(ptr, size)`` gives a bool, false being a hard failure
    (src/umbp/include/umbp/umbp_client.h in ROCm/mori), and the allocator maps whole huge pages.
    """

    mode = _enum("UMBPDeploymentMode", "Local", "StandaloneProcess", "Distributed")
    role = _enum("UMBPRole", "Standalone", "SharedSSDLeader", "SharedSSDFollower")
    kinds = ["Anonymous", "AnonymousHugetlb", "AnonymousShm", "AnonymousShmHugetlb"]
    backing = _enum("UMBPHostBufferBacking", *kinds)

    class Config(Record):
        @classmethod
        def from_environment(cls) -> Config:
            ssd = Record(enabled=False, ssd_backend="file", storage_dir="", capacity_bytes=0)
            ssd.__dict__.update(io=Record(), durability=Record())
            parts = {name: Record() for name in ("copy_pipeline", "eviction")}
            remote = dict.fromkeys(("distributed", "standalone_process"))
            return cls(dram=Record(capacity_bytes=1 << 30), ssd=ssd, **parts, **remote)

    class Client:
        def __init__(self, config: Any) -> None:
            self._mode = mode["Distributed"] if config.distributed is not None else mode["Local"]
            if config.standalone_process is not None:
                self._mode = mode["StandaloneProcess"]

        def is_distributed(self) -> bool:
            return self._mode is mode["Distributed"]

        def get_deployment_mode(self) -> Any:
            return self._mode

        def supports_ranged_io(self) -> bool:
            return True

        def register_memory(self, ptr: int, size: int) -> bool:
            return take(ptr, size)

        def deregister_memory(self, ptr: int) -> None: ...

        def close(self) -> None: ...

    class HostMemory:
        def alloc(self, size: int, kind: Any, hugepage: int, numa: int, prefault: bool) -> Record:
            mapped = -(-size // _HUGEPAGE) * _HUGEPAGE
            region = mmap.mmap(-1, mapped)
            pointer = ctypes.addressof(ctypes.c_byte.from_buffer(region))
            fields = {"actual_backing": kind, "actual_alignment": _HUGEPAGE, "region": region}
            return Record(ptr=pointer, requested_size=size, mapped_size=mapped, **fields)

        def free(self, handle: Record) -> None: ...

    def distributed() -> Record:
        return Record(
            master_config=Record(),
            io_engine=Record(host="", port=0),
            dram_page_size=0,
            staging_buffer_size=0,
            peer_service_port=0,
            cache_remote_fetches=True,
        )

    def standalone() -> Record:
        return Record(address="", auto_start=True, startup_timeout_ms=1000)

    content: dict[str, Any] = {"UMBPClient": Client, "UMBPConfig": Config, "UMBPRole": role}
    content |= {"UMBPDeploymentMode": mode, "UMBPHostBufferBacking": backing}
    content |= {"UMBPHostMemAllocator": HostMemory, "UMBPDistributedConfig": distributed}
    return {"mori.umbp": {**content, "UMBPStandaloneProcessConfig": standalone}}


def _tensorcast() -> dict[str, dict[str, Any]]:
    """``tensorcast.api.store`` as host_allocator.py and tensorcast_store.py in
    storage/tensorcast_store call it.

    The session allocates the host tensors; nothing is registered later
    (tensorcast/api/store/region_backed_artifact_session.py in tensorcast-ai/tensorcast).
    """
    import torch

    class Options(Record):
        def __eq__(self, other: object) -> bool:
            return (
                isinstance(other, Options)
                and vars(self)["session_name"] == vars(other)["session_name"]
            )

        __hash__ = None  # type: ignore[assignment]

    class Session:
        @classmethod
        def attach(cls, options: Options) -> Session:
            return cls()

        def allocate_host_tensor(self, dims: Any, dtype: torch.dtype, *, name: str) -> torch.Tensor:
            tensor = torch.zeros(dims, dtype=dtype)
            if not take(tensor.data_ptr(), tensor.numel() * tensor.element_size()):
                raise RuntimeError("region setup failed")
            return tensor

        def terminate_process_session(self) -> None: ...

    errors = (
        "RegionArtifactInputError",
        "RegionSessionFailedError",
        "RegionSessionTerminatedError",
    )
    records: tuple[str, ...] = (
        "ByteArtifactKeyspace",
        "ByteArtifactSpec",
        "HostMemorySpan",
        "RegionArtifactTransfer",
    )
    records += ("AllocatorTransferOptions", "ScratchTransferOptions")
    content: dict[str, Any] = {name: type(name, (RuntimeError,), {}) for name in errors}
    content |= {name: type(name, (Record,), {}) for name in records}
    content |= {"RegionBackedArtifactSessionOptions": Options}
    return {"tensorcast.api.store": {**content, "RegionBackedArtifactSession": Session}}


def _aibrix() -> dict[str, dict[str, Any]]:
    """``aibrix_kvcache`` as storage/aibrix_kvcache/aibrix_kvcache_storage.py constructs it."""
    names: tuple[str, ...] = (
        "BaseKVCacheManager",
        "BlockHashes",
        "KVCacheBlockSpec",
        "KVCacheConfig",
    )
    names += ("KVCacheTensorSpec", "ModelSpec")
    layout = _enum("KVCacheBlockLayout", "NCLD")
    return {
        "aibrix_kvcache": {**dict.fromkeys(names, Record), "KVCacheBlockLayout": layout},
        "aibrix_kvcache.common.absl_logging": {"log_every_n_seconds": lambda *args: None},
    }


def _boto3() -> dict[str, dict[str, Any]]:
    """``boto3`` as storage/seaweedfs/seaweedfs_store.py calls it to start: its bucket is there."""
    client = Record(head_bucket=lambda **bucket: {})
    return {
        "boto3": {"client": lambda *args, **kwargs: client},
        "botocore.config": {"Config": Record},
    }
