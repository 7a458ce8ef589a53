"""What the pool zoo is made of: device pools, stand-ins for CUDA, a look at host memory.

The device pools are SGLang's own classes in CPU memory; no namespace stands for one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import device_side
import standins

PAGE_SIZE = device_side.PAGE_SIZE
WIDE_PAGE = 128  # what formats with scales (MXFP8, NVFP4) demand
LAYERS = device_side.TARGET_LAYERS
_MEM_CACHE = "sglang.srt.mem_cache."
_POOL_HOST = "base mha mla mamba dsa group mha_mxfp8 unified qsa minimax_m3_nvfp4 page_interleave"
_HOST_MODULES = (
    "memory_pool_host",
    "hisparse_memory_pool",
    *(f"pool_host.{name}" for name in _POOL_HOST.split()),
)


class AbsentError(Exception):
    """This release does not have what is asked for."""


def host_modules() -> list[ModuleType]:
    """The modules of this release that define host pools."""
    found = []
    for name in _HOST_MODULES:
        try:
            found.append(import_module(_MEM_CACHE + name))
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(_MEM_CACHE):
                raise
    return found


def host_class(*names: str) -> Any:
    """The first of the classes `names` that this release has, from where it is defined or used."""
    for name in names:
        for module in host_modules():
            if name in vars(module):
                return vars(module)[name]
    raise AbsentError(names[0])


def call(function: Any, *positional: Any, **available: Any) -> Any:
    """Call `function` with those of the named arguments that its signature has."""
    wanted = inspect.signature(function).parameters
    return function(*positional, **{k: v for k, v in available.items() if k in wanted})


def device(module: str, name: str, page_size: int = PAGE_SIZE, **shape: Any) -> Any:
    """Construct SGLang's device pool `name`, or a part of one, with the sizes that most take."""
    import torch

    common = {
        "size": device_side.TOKENS,
        "page_size": page_size,
        "dtype": torch.bfloat16,
        "layer_num": LAYERS,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    return call(getattr(import_module(_MEM_CACHE + module), name), **{**common, **shape})


def buffer_info(device_pool: Any) -> Any:
    """What a device pool says of its own buffers (0.5.22 and later)."""
    return device_pool.get_device_pool_infos()[0].buffer_info


def indexed_mla() -> Any:
    """The pool of a DeepSeek V3.2 model: latent rows and index keys (NSA, later named DSA)."""
    names = vars(import_module(_MEM_CACHE + "memory_pool"))
    name = "DSATokenToKVPool" if "DSATokenToKVPool" in names else "NSATokenToKVPool"
    shape = {"kv_lora_rank": 64, "qk_rope_head_dim": 64, "kv_cache_dim": 128}
    with _no_context_parallelism(names[name]):
        return device("memory_pool", name, index_head_dim=128, **shape)


def _no_context_parallelism(pool: type) -> AbstractContextManager[Any]:
    """State the one width that the pool asks the published configuration for (0.5.20 and later)."""
    if "attn_dcp_size" not in pool.__init__.__code__.co_names:  # type: ignore[misc]
        return nullcontext()
    parallel = import_module("sglang.srt.runtime_context").get_parallel()
    return parallel.override(attn_dcp_size=1)  # type: ignore[no-any-return]


def mamba() -> Any:
    """A hybrid model's states: two convolutions and a recurrence a layer, and from 0.5.20 a state
    that rides along by slot."""
    import torch
    from sglang.srt.configs import mamba_utils

    shape = mamba_utils.Mamba2StateShape(
        conv=[(32, 3), (16, 3)],
        temporal=(2, 16, 16),
        conv_dim=32,
        conv_kernel=4,
        **dict.fromkeys(("ssm_state_size", "head_dim", "state_size"), 16),
        **{"intermediate_size": 32, "num_heads": 2},
    )
    types = mamba_utils.Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32)
    layers = list(range(LAYERS))
    parameters = mamba_utils.Mamba2CacheParams(shape=shape, dtype=types, layers=layers)
    states = {"spec_state_size": 0, "cache_params": parameters, "mamba_layer_ids": layers}
    pool = device("memory_pool", "MambaPool", size=64, **states)
    if hasattr(pool, "register_slot_state"):
        side = {"size": 64, "context_len": 2, "eos_token_id": 0}
        pool.register_slot_state(device("ple_state_pool", "NGramPool", **side))
    return pool


def qsa() -> Any:
    """A hybrid pool with QSA's compressed index keys; its full-attention pool is plain MHA."""
    index = {"index_kv_heads": 1, "index_head_dim": 32, "compress_ratio": 4, "token_topk": 16}
    return device(
        "qsa_kv_pool",
        "QSATokenToKVPool",
        head_num=2,
        head_dim=64,
        full_attention_layer_ids=[1, 3],
        mamba_pool=mamba(),
        num_request_slots=8,
        **{f"qsa_{name}": value for name, value in index.items()},
    )


def k_only() -> Any:
    """Index keys of a MiniMax sparse model, without values."""
    return device("memory_pool", "MHATokenToKOnlyPool", head_num=1, head_dim=64)


def hisparse_mha() -> Any:
    """The main pool of MiniMax M3 under HiSparse."""
    return device("hisparse_memory_pool", "HiSparseMHAMainPool", head_num=1, head_dim=64)


def mxfp8() -> Any:
    """Block-scaled FP8 rows with interleaved scales."""
    return device("memory_pool", "MHATokenToKVPoolMXFP8", WIDE_PAGE, head_num=2, head_dim=64)


def nvfp4(name: str) -> Any:
    """MiniMax M3.1's packed page rows."""
    return device("minimax_m3_nvfp4_pool", name, WIDE_PAGE, head_num=1, head_dim=128)


def deepseek_v4(name: str) -> Any:
    """DeepSeek V4's rows: 584 bytes a token, a page padded to a multiple of 576."""
    import torch

    row: dict[str, Any] = {"qk_nope_head_dim": 448, "qk_rope_head_dim": 64}
    row["dtype"] = torch.float8_e4m3fn
    return device("deepseek_v4_memory_pool", name, **row)


def deepseek_v4_state() -> Any:
    """One layer's compressor states, a ring of eight a page."""
    shape: dict[str, Any] = {"size": 512, "ring_size": 8, "overlap": True, "head_dim": 32}
    shape.update(ratio=4, swa_page_size=PAGE_SIZE)
    return device("deepseek_v4_compress_state", "CompressStatePool", **shape)


def unified() -> list[Any]:
    """Full and sliding-window pools that grow towards each other in one buffer."""
    import torch

    def half(name: str, layers: int, direction: str) -> Any:
        shape = {"head_num": 2, "head_dim": 64, "store_dtype": torch.bfloat16}
        place = {"name": name, "layer_num": layers, "grow_direction": direction}
        return module.MHASubPoolSpec(**place, **shape)

    module = import_module(_MEM_CACHE + "unified_memory_pool")
    specs = [half("full", 2, "down"), half("swa", LAYERS, "up")]
    buffer = device(
        "unified_memory_pool", "UnifiedKVPool", total_bytes=4 << 20, sub_pool_specs=specs
    )
    halves = {"unified_buffer": buffer, "page_size": PAGE_SIZE}
    pools = [module.UnifiedMHATokenToKVPool(sub_pool_name=n, **halves) for n in ("full", "swa")]
    for pool in pools:
        pool.host_capacity_tokens = device_side.TOKENS  # as allocator/unified_hybrid_swa.py does
    return pools


@contextmanager
def answering(**names: Any) -> Iterator[None]:
    """Put these variables in place in the modules of the host pools, for a while."""
    replaced = [
        (module, name, vars(module)[name])
        for module in host_modules()
        for name in names
        if name in vars(module)
    ]
    for module, name, _ in replaced:
        setattr(module, name, names[name])
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


def on_cuda() -> AbstractContextManager[None]:
    """Let ``destroy`` unpin, which it does on CUDA and ROCm only."""
    return answering(_is_cuda=True)


def transfer_kernels() -> AbstractContextManager[None]:
    """Answer yes where a constructor asks for CUDA's transfer kernels; none of them is run."""
    return answering(
        _is_cuda=True,
        can_use_hicache_jit_kernel=lambda **_: True,
        can_use_write_back_jit_kernel=lambda **_: True,
        current_platform=SimpleNamespace(capabilities=SimpleNamespace(hicache_device_kernels=True)),
    )


class PageLocks:
    """The bench's page-locking, with a list of what is locked now: size by address."""

    def __init__(self) -> None:
        import torch

        standins.page_locking()
        self._driver: Any = torch.cuda._cudart
        self.locked: dict[int, int] = {}
        torch.cuda._cudart = self  # type: ignore[assignment]

    def cudaHostRegister(self, ptr: int, size: int, flags: int) -> Any:  # noqa: N802
        code = self._driver.cudaHostRegister(ptr, size, flags)
        if int(code) == 0:
            self.locked[ptr] = size
        return code

    def cudaHostUnregister(self, ptr: int) -> Any:  # noqa: N802
        self.locked.pop(ptr, None)
        return self._driver.cudaHostUnregister(ptr)

    def cudaGetErrorString(self, code: Any) -> str:  # noqa: N802
        return str(self._driver.cudaGetErrorString(code))


_NO_BUFFER = re.compile(
    r"free_slots|release_slots|mem_state|slot_used|.*indices|.*_ptrs|.*_refs|.*_views?|.*_layers"
    r"|.*staging.*|.*_rows|_?device_.*|.*_device_.*|.*buffer_infos?|state_pools"
)
"""Attributes without a buffer of the pool's own: slot lists, pointer tables, views, staging, and
what is the device's. Any other attribute that holds a tensor counts."""


class Buffers:
    """The host buffers found in a pool object: distinct storages, size by address.

    `attributes` are where they were found. Nothing of hicache-obs has a say in this.
    """

    def __init__(self, pool: Any) -> None:
        self.sizes: dict[int, int] = {}
        self.attributes: list[str] = []
        self._look(pool, "")

    def _look(self, thing: Any, prefix: str) -> None:
        for name, value in vars(thing).items():
            path = prefix + name
            if name in ("host_pool", "_shared_backing"):
                self._look(value, path + ".")
            elif name == "entries":
                for entry in value:
                    self._look(entry.host_pool, path + ".host_pool.")
            elif not _NO_BUFFER.fullmatch(name):
                for item in value if isinstance(value, (list, tuple)) else (value,):
                    self._add(path, item)

    def _add(self, path: str, item: Any) -> None:
        import torch

        storage = item.untyped_storage() if isinstance(item, torch.Tensor) else None
        if storage is not None and storage.nbytes():
            self.sizes[storage.data_ptr()] = storage.nbytes()
            if path not in self.attributes:
                self.attributes.append(path)
