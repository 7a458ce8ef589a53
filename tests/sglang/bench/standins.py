"""What stands in for hardware and vendor libraries on the bench, and nothing else.

Each stand-in is one function. Everything around them is SGLang's own code.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any, ClassVar


class _Code:
    """Stands in for ``cudaError``, the enum of torch's binding: no int, but it can be made one."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __int__(self) -> int:
        return self._code


class _PageLocking:
    """Stands in for ``torch.cuda.cudart()``: a driver that answers with recorded codes.

    SGLang's ``_cuda_host_register`` (mem_cache/pool_host/common.py, 0.5.14+; inline in
    mem_cache/memory_pool_host.py up to 0.5.13) runs for real on top of it.
    ``BENCH_CUDA_RC`` sets the code that ``cudaHostRegister`` returns. Like torch's binding,
    ``cudaGetErrorString`` takes the enum only (torch/csrc/cuda/shared/cudart.cpp): SGLang from
    0.5.20 on gives it an int.
    """

    _NAMES: ClassVar = {
        0: "no error",
        1: "invalid argument",
        2: "out of memory",
        712: "already mapped",
    }

    def cudaHostRegister(self, ptr: int, size: int, flags: int) -> _Code:  # noqa: N802
        return _Code(int(os.environ.get("BENCH_CUDA_RC", "0")))

    def cudaHostUnregister(self, ptr: int) -> _Code:  # noqa: N802
        return _Code(0)

    def cudaGetErrorString(self, code: _Code) -> str:  # noqa: N802
        if not isinstance(code, _Code):
            raise TypeError("cudaGetErrorString(): incompatible function arguments")
        return self._NAMES.get(int(code), f"error {int(code)}")


def page_locking() -> None:
    """Let SGLang page-lock host memory without a CUDA driver.

    ``torch.cuda.cudart`` itself stays torch's own (hicache-obs hooks it): what it initializes and
    what it answers are replaced.
    """
    import torch

    torch.cuda._lazy_init = lambda: None
    torch.cuda._cudart = _PageLocking()  # type: ignore[assignment]


def device_streams() -> None:
    """Give the cache controller CPU streams and events in place of CUDA's.

    ``device_module`` is a module variable of managers/cache_controller.py (all releases) and of
    mem_cache/l2_transfer.py (0.5.20+), bound to CUDA when SGLang is imported.
    """
    import torch

    for name in ("sglang.srt.managers.cache_controller", "sglang.srt.mem_cache.l2_transfer"):
        module = _import_if_there(name)
        if module is not None and hasattr(module, "device_module"):
            module.device_module = torch.cpu  # type: ignore[attr-defined]


def no_attach() -> None:
    """Stand in for a vendor's store whose library is absent: the controller attaches an empty one.

    Only ``create_backend`` of mem_cache/storage/backend_factory.py is replaced;
    ``attach_storage_backend`` itself runs, because it also sets the ranks that SGLang's storage
    metrics read (managers/cache_controller.py, mem_cache/hiradix_cache.py).
    """
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    methods = dict.fromkeys(HiCacheStorage.__abstractmethods__, nothing)
    empty_store = type("AbsentVendorStore", (HiCacheStorage,), dict(methods))

    def create_backend(cls: type, *args: Any, **kwargs: Any) -> Any:
        return empty_store()

    StorageBackendFactory.create_backend = classmethod(create_backend)


def draft_allocator(kind: str) -> None:
    """Let the draft sidecar builder ask for allocator `kind`: the fault of 0.5.14 on new code.

    mem_cache/hybrid_cache/hybrid_pool_assembler.py asks ``_get_allocator_type`` for the target and
    for the draft alike; the answer is changed only while ``build_hicache_draft_sidecars`` runs.
    0.5.20+; 0.5.18 takes that way only with ``SGLANG_ENABLE_UNIFIED_RADIX_TREE=1``.
    """
    from sglang.srt.mem_cache import kv_cache_builder
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler

    legacy = hasattr(kv_cache_builder, "_register_legacy_hicache_draft")
    unified = os.environ.get("SGLANG_ENABLE_UNIFIED_RADIX_TREE") == "1"
    if not hasattr(assembler, "build_hicache_draft_sidecars") or (legacy and not unified):
        raise SystemExit("--force-draft-allocator: this release does not build sidecars here")
    build, ask = assembler.build_hicache_draft_sidecars, assembler._get_allocator_type

    def build_hicache_draft_sidecars(*args: Any, **kwargs: Any) -> Any:
        assembler._get_allocator_type = lambda *a, **k: kind
        try:
            return build(*args, **kwargs)
        finally:
            assembler._get_allocator_type = ask

    assembler.build_hicache_draft_sidecars = build_hicache_draft_sidecars


def _import_if_there(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            return None
        raise
