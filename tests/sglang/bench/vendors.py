"""Stand-ins for the libraries that SGLang's storage backends import: what SGLang calls, no more.

Each function makes the modules of one vendor; `install` puts those of absent libraries into
``sys.modules``. With ``BENCH_VENDOR_FAILS=1`` a registration is refused the way that vendor refuses
one. `REGISTERED` holds every (address, size) that a stand-in took.

The calls are those of SGLang 0.5.11 to 0.5.23, at the call site named in each docstring. What
nixl-cu12 1.5.1, memcache-hybrid 1.3.0 and memfabric-hybrid 1.3.0 answer was seen with the real
wheels on a machine without an accelerator; the others are read where it says. The vendors that own
the host memory, or none, are in ``vendors_with_memory.py``.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

REGISTERED: list[tuple[int, int]] = []
_FAILS = "BENCH_VENDOR_FAILS"


def fails() -> bool:
    """Whether the vendors refuse registrations now."""
    return os.environ.get(_FAILS) == "1"


@contextlib.contextmanager
def answering(*, failure: bool) -> Iterator[None]:
    """Let the vendors refuse registrations, or take them, in this block."""
    before = os.environ.get(_FAILS, "0")
    os.environ[_FAILS] = "1" if failure else "0"
    try:
        yield
    finally:
        os.environ[_FAILS] = before


def install() -> None:
    """Put the stand-ins in place of libraries that are not installed."""
    import vendors_with_memory

    made = vendors_with_memory.modules()
    for make in (_nixl, _eic, _simm, _memcache, _memfabric):
        made.update(make())
    absent = {
        name
        for name in {path.partition(".")[0] for path in made}
        if name not in sys.modules and importlib.util.find_spec(name) is None
    }
    for path, content in made.items():
        if path.partition(".")[0] in absent:
            _module(path, content)


def pageable_tensors() -> None:
    """Stand in for page-locked tensors: ``pin_memory=True`` gives ordinary memory.

    EmbeddingCacheController (mem_cache/embedding_cache_controller.py) and FlexibleKVCacheMemoryPool
    (mem_cache/storage/eic/eic_storage.py) ask for it; PyTorch without a GPU raises.
    """
    import torch

    for name in ("empty", "zeros"):
        original = getattr(torch, name)

        def pageable(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            kwargs.pop("pin_memory", None)
            return _original(*args, **kwargs)

        setattr(torch, name, pageable)


def _module(path: str, content: dict[str, Any]) -> None:
    parent, _, name = path.rpartition(".")
    if parent and parent not in sys.modules:
        _module(parent, {})
    module = sys.modules[path] = types.ModuleType(path)
    module.__path__ = []
    module.__dict__.update(content)
    if parent:
        setattr(sys.modules[parent], name, module)


def take(pointer: int, size: int) -> bool:
    """Register, as every vendor here does it: unless they refuse now."""
    if fails():
        return False
    REGISTERED.append((pointer, size))
    return True


class Record:
    """A plain vendor object: what it is constructed with, and what SGLang sets on it."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        self.args = args
        self.__dict__.update(fields)

    def __repr__(self) -> str:  # without an address: two runs' answers are compared
        return f"<{type(self).__name__}>"


def _nixl() -> dict[str, dict[str, Any]]:
    """``nixl._api`` as storage/nixl/{hicache_nixl,nixl_utils,nixl_registry}.py call it.

    ``register_memory`` gives back the descriptor list or raises nixlBackendError
    ("NIXL_ERR_BACKEND"), never a code: seen for the probe of a file that is not there, which
    NixlRegistry makes from 0.5.20 on. With its POSIX plug-in NIXL takes any DRAM, a null too.
    """

    class nixlBackendError(Exception):  # noqa: N801
        """The name is NIXL's."""

    class Agent:
        def __init__(self, name: str, config: Any) -> None:
            self.plugin_list = self.get_plugin_list()

        def get_plugin_list(self) -> list[str]:
            return ["POSIX", "UCX"]

        def create_backend(self, backend: str, params: dict[str, str]) -> None: ...

        def get_backend_params(self, backend: str) -> dict[str, str]:
            return {}

        def get_reg_descs(self, items: Any, mem_type: str | None = None) -> Any:
            if hasattr(items, "data_ptr"):
                items = [items]
            pairs = [
                (item.data_ptr(), item.numel() * item.element_size())
                if hasattr(item, "data_ptr")
                else (item[0], item[1])
                for item in items
            ]
            return Record(pairs=pairs, mem_type=mem_type)

        def register_memory(self, descs: Any) -> Any:
            if descs.mem_type == "FILE" or not all(take(*pair) for pair in descs.pairs):
                raise nixlBackendError("NIXL_ERR_BACKEND")
            return descs

        def deregister_memory(self, descs: Any) -> None: ...

    def config(backends: list[str]) -> Record:
        names = ("enable_pthread", "enable_listen", "capture_telemetry")
        return Record(backends=backends, port=0, **dict.fromkeys(names, False))

    bind = types.SimpleNamespace(
        NIXL_THREAD_SYNC_RW=1,
        NIXL_THREAD_SYNC_STRICT=2,
        nixlAgentConfig=Record,
        nixlAgent=lambda name, config: Record(getAvailPlugins=lambda: ["POSIX", "UCX"]),
        nixlBackendError=nixlBackendError,
    )
    return {"nixl._api": {"nixl_agent": Agent, "nixl_agent_config": config, "nixlBind": bind}}


def _eic() -> dict[str, dict[str, Any]]:
    """``eic`` as storage/eic/eic_storage.py calls it (0.5.11 to 0.5.23 alike).

    ``Client.register_memory`` gives a bool: aibrix_kvcache 0.8.0 tests it so
    (l2/connectors/eic/eic.py); SGLang looks at it nowhere.
    """

    class IOBuffers(list[tuple[int, int]]):
        def append(self, pointer: int, size: int, registered: bool) -> None:  # type: ignore[override]
            super().append((pointer, size))

    class Client:
        def init(self, instance: str, endpoint: str, option: Any) -> int:
            return 0

        def mexist(self, keys: list[str], option: Any) -> tuple[int, list[int]]:
            return 0, [0] * len(keys)

        def register_memory(self, buffers: IOBuffers, info: Any) -> bool:
            return all(take(*pair) for pair in buffers)

    names = ("MemoryInfo", "InitOption", "ExistOption", "LogLevel", "TransportType")
    memory_type = types.SimpleNamespace(MEMORY_CUDA=1, MEMORY_DEFAULT=0)
    content: dict[str, Any] = {"Client": Client, "IOBuffers": IOBuffers, "StringVector": list}
    return {"eic": {**content, **dict.fromkeys(names, Record), "MemoryType": memory_type}}


def _simm() -> dict[str, dict[str, Any]]:
    """``simm.kv`` as storage/simm/hicache_simm.py calls it: ``register_mr`` may give None."""
    import torch

    class Block:
        def __init__(self, size: int) -> None:
            self._bytes = torch.zeros(size, dtype=torch.uint8)

        def as_ref(self) -> torch.Tensor:
            return self._bytes

        view = as_ref

    class Store:
        def __init__(self) -> None:
            self._values: dict[str, torch.Tensor] = {}

        def allocate(self, size: int) -> Block:
            return Block(size)

        def put(self, key: str, view: torch.Tensor) -> int:
            self._values[key] = view.clone()
            return 0

        def exists(self, key: str) -> bool:
            return key in self._values

        def get(self, key: str, view: torch.Tensor) -> int:
            view.copy_(self._values[key])
            return view.numel()

    def register_mr(tensor: torch.Tensor) -> Record | None:
        taken = take(tensor.data_ptr(), tensor.numel() * tensor.element_size())
        return Record(tensor=tensor) if taken else None

    flag = {"set_flag": lambda name, value: None}
    return {"simm.kv": {"BlockView": Block, "Store": Store, "register_mr": register_mr, **flag}}


def _memcache() -> dict[str, dict[str, Any]]:
    """``memcache_hybrid`` as storage/npu_memcache/npu_memcache_store.py calls it: codes, 0 is good.

    -3019 (client is not initialized) and -3000 (null address) were seen.
    """

    class Store:
        def __init__(self) -> None:
            self._values: dict[str, bytes] = {}

        def setup(self, config: Any) -> int:
            return 0

        def init(self, device: int, init_bm: bool) -> int:
            return 0

        def register_buffer(self, pointer: int, size: int) -> int:
            return 0 if take(pointer, size) else -3019

        def put(self, key: str, value: bytes) -> int:
            self._values[key] = bytes(value)
            return 0

        def is_exist(self, key: str) -> int:
            return int(key in self._values)

        def get(self, key: str) -> bytes:
            return self._values[key]

    return {"memcache_hybrid": {"DistributedObjectStore": Store, "LocalConfig": Record}}


def _memfabric() -> dict[str, dict[str, Any]]:
    """``memfabric_hybrid`` as disaggregation/ascend/transfer_engine.py calls it: codes, 0 is good.

    -1 was seen from ``initialize``. There is no ``batch_unregister_memory`` in the real one either.
    """

    class TransferEngine:
        TransDataOpType = enum.Enum("TransDataOpType", ["SDMA", "DEVICE_RDMA"])

        def get_rpc_port(self) -> int:
            return 12345

        def initialize(self, *args: Any) -> int:
            return 0

        def register_memory(self, pointer: int, size: int) -> int:
            return 0 if take(pointer, size) else -1

        def batch_register_memory(self, pointers: list[int], sizes: list[int]) -> int:
            return 0 if all(map(take, pointers, sizes)) else -1

        def unregister_memory(self, pointer: int) -> int:
            return -1 if fails() else 0

    return {"memfabric_hybrid": {"TransferEngine": TransferEngine}}
