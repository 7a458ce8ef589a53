"""One scheduler process of the bench: SGLang's ``run_scheduler_process`` around a small scheduler.

The model is left out; process start, plug-ins, host pools, store and the way of dying are real.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import device_side
import hicache_path
import rank_report
import scheduler_metrics
import standins
from options import Options


def run(
    options: Options,
    server_args: Any,
    port_args: Any,
    tp_rank: int,
    *,
    pipe_writer: Any,
    stop: Any,
) -> None:
    """Be rank `tp_rank` until `stop` is set; dies as SGLang's own rank does."""
    import sglang.srt.managers.scheduler as scheduler_module

    standins.page_locking()
    standins.device_streams()
    if options.hicache and not options.attach:
        standins.no_attach()
    if options.force_draft_allocator:
        standins.draft_allocator(options.force_draft_allocator)
    # Before load_plugins(), so that a plug-in hooks the replacement as it would hook the original.
    _replace_scheduler(scheduler_module.Scheduler, options, tp_rank, stop)

    available = {
        "server_args": server_args,
        "port_args": port_args,
        "gpu_id": 0,
        "tp_rank": tp_rank,
        "attn_cp_rank": 0,
        "moe_dp_rank": 0,
        "moe_ep_rank": 0,
        "pp_rank": 0,
        "dp_rank": None,
        "pipe_writer": pipe_writer,
    }
    wanted = inspect.signature(scheduler_module.run_scheduler_process).parameters
    scheduler_module.run_scheduler_process(
        **{name: value for name, value in available.items() if name in wanted}
    )
    gc.freeze()  # as in server.py: a fast end of the interpreter


def _replace_scheduler(scheduler: Any, options: Options, tp_rank: int, stop: Any) -> None:
    """Put the small bodies in place of the big ones, under the same names and signatures.

    `tp_rank` is the launcher's: from 0.5.21 the constructor does not get it as an argument.
    """

    def body(self: Any, server_args: Any, port_args: Any) -> None:
        _build(self, server_args, port_args, options, tp_rank)

    def with_ranks(  # noqa: PLR0917
        self: Any,
        server_args: Any,
        port_args: Any,
        gpu_id: Any,
        tp_rank: Any,
        moe_ep_rank: Any,
        pp_rank: Any,
        attn_cp_rank: Any,
        moe_dp_rank: Any,
        dp_rank: Any,
    ) -> None:
        body(self, server_args, port_args)

    def published(self: Any, server_args: Any, port_args: Any) -> None:
        body(self, server_args, port_args)

    def get_init_info(self: Any) -> dict[str, Any]:
        return {
            "status": "ready",
            "max_total_num_tokens": device_side.TOKENS,
            "max_req_input_len": 512,
        }

    def run_event_loop(self: Any) -> None:
        stop.wait()

    candidates = [with_ranks, published]  # up to 0.5.20; from 0.5.21
    _replace(scheduler, "__init__", candidates)
    _replace(scheduler, "get_init_info", [get_init_info])
    _replace(scheduler, "run_event_loop", [run_event_loop])


def _replace(owner: Any, name: str, candidates: list[Any]) -> None:
    original = vars(owner)[name]
    wanted = list(inspect.signature(original).parameters)
    for candidate in candidates:
        if list(inspect.signature(candidate).parameters) == wanted:
            candidate.__signature__ = inspect.signature(original)
            candidate.__name__ = original.__name__
            candidate.__qualname__ = original.__qualname__
            candidate.__module__ = original.__module__
            setattr(owner, name, candidate)
            return
    raise SystemExit(f"bench: {owner.__name__}.{name}{wanted} is a signature it does not know")


def _build(
    scheduler: Any, server_args: Any, port_args: Any, options: Options, tp_rank: int
) -> None:
    facts: dict[str, Any] = {
        "rank": tp_rank,
        "pid": os.getpid(),
        "prometheus_client_before_constructor": "prometheus_client" in sys.modules,
    }
    report = Path(f"{options.report}.{tp_rank}.json") if options.report else None
    try:
        _after_loop(scheduler, options)
        import sglang.srt.server_args as server_args_module

        # ModelRunner.__init__ does this up to 0.5.18 (model_executor/model_runner.py).
        share = getattr(server_args_module, "set_global_server_args_for_scheduler", None)
        if share is not None:
            share(server_args)
        if options.transfer_engine:
            _init_transfer_engine()
        device_side.init_groups(tp_rank, options.ranks, port_args.nccl_port)
        side = device_side.build(server_args, options.target, options.draft)
        ranks = hicache_path.Ranks.of(tp_rank, options.ranks)
        # SGLang creates its metrics before the pools, in 0.5.13 and 0.5.14 after them.
        metrics_first = any(
            hasattr(scheduler, name) for name in ("init_metrics", "init_metrics_collector")
        )
        if metrics_first:
            scheduler_metrics.publish(options, server_args, tp_rank)
        facts["prometheus_client_before_first_pool"] = "prometheus_client" in sys.modules
        hicache_path.build(scheduler, server_args, side, ranks)
        facts["tree_cache"] = type(scheduler.tree_cache).__name__
        if not metrics_first:
            scheduler_metrics.publish(options, server_args, tp_rank)
    except Exception as error:
        if report is not None:
            rank_report.write(report, facts, error)
        raise
    if report is not None:
        rank_report.write(report, facts, None)


def _init_transfer_engine() -> None:
    """What ``ModelRunner.__init__`` does first where HiCache has a Mooncake store
    (``init_shared_mooncake_transfer_engine``; distributed/bootstrap.py in 0.5.23)."""
    from sglang.srt.distributed.device_communicators import mooncake_transfer_engine

    mooncake_transfer_engine.init_mooncake_transfer_engine(hostname="127.0.0.1", gpu_id=0)


def _after_loop(scheduler: Any, options: Options) -> None:
    """Give the scheduler what ``finally`` of ``run_scheduler_process`` touches, release by release.

    ``_shutdown_fpm`` (0.5.12), ``metrics_reporter`` (0.5.13+), ``gracefully_exit`` (0.5.14+),
    ``async_d2h_worker`` (0.5.23).
    """
    import types

    scheduler._shutdown_fpm = lambda: None
    scheduler.metrics_reporter = types.SimpleNamespace(_shutdown_fpm=lambda: None)
    scheduler.async_d2h_worker = None
    scheduler.gracefully_exit = options.graceful_exit
    scheduler.hisparse_coordinator = None
    scheduler.decode_offload_manager = None
    scheduler.enable_hisparse = False
