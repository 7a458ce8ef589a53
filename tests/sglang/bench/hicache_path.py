"""The part of ``Scheduler.__init__`` that builds the HiCache host side, with SGLang's own builders.

0.5.11 and 0.5.12: ``Scheduler.init_cache_with_memory_pool`` and ``_maybe_register_hicache_draft``
(managers/scheduler.py). 0.5.13 to 0.5.16: ``kv_cache_builder.build_kv_cache``, then
``maybe_register_hicache_draft``. 0.5.18 and newer: ``build_kv_cache`` with a draft plan, which
registers the draft itself. The tree cache is the one that the release picks by default.
"""

from __future__ import annotations

import importlib.util
import inspect
import types
from typing import Any

import device_side
from options import Options


def build(scheduler: Any, server_args: Any, side: device_side.DeviceSide, ranks: Ranks) -> None:
    """Build the tree cache and everything below it, then the draft's host pool.

    `scheduler` gets what the real one would hold afterwards; `tree_cache` above all.
    Whatever SGLang raises goes through.
    """
    draft = side.draft is not None
    scheduler.server_args = server_args
    scheduler.tp_worker = side.worker
    scheduler.model_config = side.model_config
    scheduler.draft_worker = _draft_worker(side.draft) if draft else None
    scheduler.spec_algorithm = _spec_algorithm(draft)
    if has_builder():
        _build_with_builder(scheduler, server_args, side, ranks)
        if server_args.disaggregation_decode_enable_offload_kvcache:
            scheduler.decode_offload_manager = _decode_offload(scheduler, server_args)
    else:
        _build_in_scheduler(scheduler, server_args, ranks)


def has_builder() -> bool:
    """Whether this release has mem_cache/kv_cache_builder.py (0.5.13+)."""
    return importlib.util.find_spec("sglang.srt.mem_cache.kv_cache_builder") is not None


class Ranks(types.SimpleNamespace):
    """The ranks and sizes of one scheduler (distributed/parallel_state_wrapper.py, 0.5.13 to
    0.5.20; later SGLang asks its runtime context)."""

    @classmethod
    def of(cls, options: Options, tp_rank: int, dp_rank: int | None) -> Ranks:
        """Return the ranks of a tensor-parallel start, with or without data parallelism."""
        tp_size = options.ranks
        attn_dp_size = options.dp_size if options.dp_attention else 1
        attn_tp_size = tp_size // attn_dp_size
        return cls(
            tp_rank=tp_rank,
            tp_size=tp_size,
            pp_rank=0,
            pp_size=1,
            dp_rank=dp_rank,
            dp_size=options.dp_size,
            attn_tp_rank=tp_rank % attn_tp_size,
            attn_tp_size=attn_tp_size,
            attn_cp_rank=0,
            attn_cp_size=1,
            attn_dp_rank=tp_rank // attn_tp_size,
            attn_dp_size=attn_dp_size,
            moe_ep_rank=0,
            moe_ep_size=1,
        )


def _build_in_scheduler(scheduler: Any, server_args: Any, ranks: Ranks) -> None:
    groups = _groups()
    scheduler.page_size = device_side.PAGE_SIZE
    scheduler.enable_metrics = server_args.enable_metrics
    scheduler.enable_kv_cache_events = False
    scheduler.enable_hierarchical_cache = server_args.enable_hierarchical_cache
    scheduler.enable_overlap = True
    scheduler.pp_rank, scheduler.pp_size = ranks.pp_rank, ranks.pp_size
    scheduler.tp_rank, scheduler.tp_size = ranks.tp_rank, ranks.tp_size
    for name in ("tp_cpu_group", "attn_tp_cpu_group", "attn_cp_cpu_group"):
        setattr(scheduler, name, groups[name])
    scheduler.tp_group, scheduler.pp_group = groups["tp_group"], groups["pp_group"]
    scheduler.init_cache_with_memory_pool()
    scheduler._maybe_register_hicache_draft()


def _build_with_builder(
    scheduler: Any, server_args: Any, side: device_side.DeviceSide, ranks: Ranks
) -> None:
    from sglang.srt.mem_cache import kv_cache_builder

    available = {
        "server_args": server_args,
        "model_config": side.model_config,
        "tp_worker": side.worker,
        "page_size": device_side.PAGE_SIZE,
        "spec_algorithm": scheduler.spec_algorithm,
        "enable_metrics": server_args.enable_metrics,
        "enable_kv_cache_events": False,
        "enable_hierarchical_cache": server_args.enable_hierarchical_cache,
        "ps": ranks,
        **_groups(),
    }
    wanted = inspect.signature(kv_cache_builder.build_kv_cache).parameters
    planned = "hicache_draft_plan" in wanted
    if planned and side.draft is not None:
        available["hicache_draft_plan"] = _sidecar_plan(side.draft)
    arguments = {name: value for name, value in available.items() if name in wanted}
    scheduler.tree_cache = kv_cache_builder.build_kv_cache(**arguments).tree_cache
    if not planned:
        kv_cache_builder.maybe_register_hicache_draft(
            tree_cache=scheduler.tree_cache,
            draft_worker=scheduler.draft_worker,
            spec_algorithm=scheduler.spec_algorithm,
            server_args=server_args,
            enable_hierarchical_cache=server_args.enable_hierarchical_cache,
            page_size=device_side.PAGE_SIZE,
        )


def _decode_offload(scheduler: Any, server_args: Any) -> Any:
    """What ``Scheduler.__init__`` builds after the tree (0.5.13 and later; up to 0.5.12
    ``init_cache_with_memory_pool`` does): the real manager, its host pool and its controller."""
    from sglang.srt.disaggregation.decode_kvcache_offload_manager import DecodeKVCacheOffloadManager

    requests, slots = scheduler.tp_worker.get_memory_pool()
    groups = _groups()
    own = "attn_tp_cpu_group" if server_args.enable_dp_attention else "tp_cpu_group"
    available = {
        "req_to_token_pool": requests,
        "token_to_kv_pool_allocator": slots,
        "tp_group": groups[own],
        "tree_cache": scheduler.tree_cache,
        "server_args": server_args,
    }
    wanted = inspect.signature(DecodeKVCacheOffloadManager).parameters
    return DecodeKVCacheOffloadManager(**{k: v for k, v in available.items() if k in wanted})


def _groups() -> dict[str, Any]:
    from sglang.srt.distributed import parallel_state

    tp_group = parallel_state.get_tp_group()
    return {
        "tp_group": tp_group,
        "pp_group": parallel_state.get_pp_group(),
        "tp_cpu_group": tp_group.cpu_group,
        "attn_tp_cpu_group": parallel_state.get_attn_tp_group().cpu_group,
        "attn_cp_cpu_group": parallel_state.get_attn_cp_group().cpu_group,
    }


def _draft_worker(pool: Any) -> Any:
    """Stand in for an EAGLE worker: the way to its pool (V2 workers nest it; both are given)."""
    runner = types.SimpleNamespace(token_to_kv_pool=pool, model_config=None)
    nested = types.SimpleNamespace(draft_runner=runner, draft_runner_list=[runner])
    return types.SimpleNamespace(model_runner=runner, model_config=None, draft_worker=nested)


def _spec_algorithm(draft: bool) -> Any:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return SpeculativeAlgorithm.EAGLE if draft else SpeculativeAlgorithm.NONE


def _sidecar_plan(pool: Any) -> Any:
    """Return the plan that an EAGLE3 worker makes: a draft host pool of its own (0.5.18+).

    speculative/base_spec_worker.py chooses PACKED or FUSED for others; there no draft pool exists.
    """
    from sglang.srt.speculative.base_spec_worker import HiCacheDraftMode, HiCacheDraftPlan

    return HiCacheDraftPlan(mode=HiCacheDraftMode.SIDECAR, device_pools=(pool,))
