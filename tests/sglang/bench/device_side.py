"""What a model runner would have built: process groups, device pools, the slot allocator.

All classes are SGLang's own; they live in CPU memory. Only the model worker around them is a
namespace, since no model can be built here.
"""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from options import Options

PAGE_SIZE = 64
TOKENS = 1024
TARGET_LAYERS = 4
DRAFT_LAYERS = 1


@dataclass(frozen=True)
class DeviceSide:
    """The pools and groups that the host side is built on."""

    worker: Any
    model_config: Any
    target: Any
    draft: Any | None


def model_config(server_args: Any) -> Any:
    """The real ``ModelConfig`` of the tiny model."""
    from sglang.srt.configs.model_config import ModelConfig, ModelImpl

    config = ModelConfig.from_server_args(server_args)
    # The answer that get_resolved_model_impl (model_loader/utils.py) would keep here after it has
    # imported every model class of SGLang, which takes four seconds.
    config._resolved_model_impl = ModelImpl.SGLANG
    return config


def init_groups(
    options: Options, server_args: Any, config: Any, tp_rank: int, port_args: Any
) -> None:
    """Join SGLang's parallel state (distributed/parallel_state.py) over gloo, and its attention
    groups (layers/dp_attention.py).

    From 0.5.21 the sizes come from the published runtime context, before that they are arguments.
    Ranks on several hosts meet at ``dist_init_addr``, as in ``ModelRunner.init_torch_distributed``.
    """
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers import dp_attention

    meeting = options.dist_address or f"127.0.0.1:{port_args.nccl_port}"
    parallel_state.init_distributed_environment(
        world_size=options.ranks,
        rank=tp_rank,
        local_rank=tp_rank,
        backend="gloo",
        distributed_init_method=f"tcp://{meeting}",
    )
    sizes = {
        "tensor_model_parallel_size": options.ranks,
        "attention_data_parallel_size": options.dp_size if options.dp_attention else 1,
    }
    _call(parallel_state.initialize_model_parallel, backend="gloo", **sizes)
    _call(dp_attention.initialize_dp_attention, server_args=server_args, model_config=config)


def _call(function: Any, **available: Any) -> None:
    """Call `function` with those of the arguments that this release's has."""
    wanted = inspect.signature(function).parameters
    function(**{name: value for name, value in available.items() if name in wanted})


def device_pool(kind: str, layers: int) -> Any:
    """Build a device pool of SGLang (mem_cache/memory_pool.py) in CPU memory.

    "asymmetric" has another width for V than for K; from 0.5.14 SGLang picks
    ``AsymmetricMHATokenToKVPoolHost`` for it (``get_mha_host_pool_cls``).
    """
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    common: dict[str, Any] = {
        "size": TOKENS,
        "page_size": PAGE_SIZE,
        "dtype": torch.bfloat16,
        "layer_num": layers,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    if kind == "mla":
        return MLATokenToKVPool(kv_lora_rank=64, qk_rope_head_dim=64, **common)
    if kind == "asymmetric":
        common["v_head_dim"] = 32
    return MHATokenToKVPool(head_num=2, head_dim=64, **common)


def build(config: Any, target_kind: str, draft_kind: str) -> DeviceSide:
    """Build both device pools, the slot allocator and the worker around them."""
    import torch
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    target = device_pool(target_kind, TARGET_LAYERS)
    draft = None if draft_kind == "none" else device_pool(draft_kind, DRAFT_LAYERS)
    slots = PagedTokenToKVPoolAllocator(
        size=TOKENS,
        page_size=PAGE_SIZE,
        dtype=torch.bfloat16,
        device="cpu",
        kvcache=target,
        need_sort=False,
    )
    requests = ReqToTokenPool(size=8, max_context_len=512, device="cpu", enable_memory_saver=False)
    return DeviceSide(_worker(config, target, requests, slots), config, target, draft)


def _worker(config: Any, target: Any, requests: Any, slots: Any) -> Any:
    """Stand in for the model worker: the attributes that SGLang's cache builder reads, no more."""
    runner = types.SimpleNamespace(
        model_config=config,
        token_to_kv_pool=target,
        mtp_draft_device_pools=(),
        mtp_draft_mamba_pools=(),
        forward_stream=None,
        linear_attn_model_spec=None,
        hybrid_gdn_config=None,
        mamba2_config=None,
        kimi_linear_config=None,
        hybrid_lightning_config=None,
    )
    return types.SimpleNamespace(
        model_runner=runner,
        is_hybrid_swa=False,
        get_memory_pool=lambda: (requests, slots),
        register_hicache_layer_transfer_counter=lambda counter: None,
    )
