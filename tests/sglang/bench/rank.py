"""One scheduler process of the bench: SGLang's ``run_scheduler_process`` around a small scheduler.

The model is left out; process start, plug-ins, host pools, store and the way of dying are real.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attaching
import device_side
import hicache_path
import rank_report
import standins
from options import Options


@dataclass(frozen=True)
class Shared:
    """Of one server and all its ranks: `stop` ends them, each releases `done` after its steps."""

    stop: Any
    done: Any


@dataclass(frozen=True)
class Place:
    """Which rank this process is, as its launcher says it."""

    engine: int
    dp_rank: int | None
    tp_rank: int

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.dp_rank or 0}-{self.tp_rank}"


def run(options: Options, shared: Shared, engine: int, *arguments: Any) -> None:
    """Be a rank until `shared.stop` is set; dies as SGLang's own rank does.

    `arguments` are those of ``run_scheduler_process``; who gives them is SGLang, its engine or its
    data-parallel controller.
    """
    import sglang.srt.managers.scheduler as scheduler_module

    standins.page_locking()
    standins.device_streams()
    if options.hicache and not options.attach:
        standins.no_attach()
    if options.force_draft_allocator:
        standins.draft_allocator(options.force_draft_allocator)
    given = inspect.signature(scheduler_module.run_scheduler_process).bind(*arguments).arguments
    place = Place(engine, given["dp_rank"], given["tp_rank"])
    # Before load_plugins(), so that a plug-in hooks the replacement as it would hook the original.
    _replace_scheduler(scheduler_module.Scheduler, options, place, shared)
    scheduler_module.run_scheduler_process(*arguments)
    gc.freeze()  # as in server.py: a fast end of the interpreter


def _replace_scheduler(scheduler: Any, options: Options, place: Place, shared: Shared) -> None:
    """Put the small bodies in place of the big ones, under the same names and signatures.

    `place` is the launcher's: from 0.5.21 the constructor does not get the ranks as arguments.
    """
    report = _Report(options, place)

    def body(self: Any, server_args: Any, port_args: Any) -> None:
        _build(self, server_args, port_args, place, report=report)

    def with_ranks(
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
        steps = attaching.Steps(self, options, report.add_step)
        steps.take_all(options.then)
        shared.done.release()
        while not shared.stop.wait(0.1):
            steps.take_told()

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


class _Report:
    """What this rank says of itself, written anew whenever there is more of it."""

    def __init__(self, options: Options, place: Place) -> None:
        self.options = options
        self._path = Path(f"{options.report}.{place.name}.json") if options.report else None
        self.facts: dict[str, Any] = {
            "rank": place.tp_rank,
            "dp_rank": place.dp_rank,
            "engine": place.engine,
            "node_rank": options.node_rank,
            "pid": os.getpid(),
            "prometheus_client_before_constructor": "prometheus_client" in sys.modules,
            "steps": [],
        }

    def add_step(self, step: dict[str, Any]) -> None:
        self.facts["steps"].append({"number": len(self.facts["steps"]), **step})
        self.write()

    def write(self, error: BaseException | None = None) -> None:
        if self._path is not None:
            rank_report.write(self._path, self.facts, error)


def _build(
    scheduler: Any, server_args: Any, port_args: Any, place: Place, *, report: _Report
) -> None:
    options, facts = report.options, report.facts
    facts["prometheus_client_before_constructor"] = "prometheus_client" in sys.modules
    try:
        _after_loop(scheduler, options)
        import sglang.srt.server_args as server_args_module

        # ModelRunner.__init__ does this up to 0.5.18 (model_executor/model_runner.py).
        share = getattr(server_args_module, "set_global_server_args_for_scheduler", None)
        if share is not None:
            share(server_args)
        if options.transfer_engine:
            _init_transfer_engine()
        model_config = device_side.model_config(server_args)
        device_side.init_groups(options, server_args, model_config, place.tp_rank, port_args)
        side = device_side.build(model_config, options.target, options.draft)
        ranks = hicache_path.Ranks.of(options, place.tp_rank, place.dp_rank)
        # SGLang creates its metrics before the pools, in 0.5.13 and 0.5.14 after them.
        metrics_first = any(
            hasattr(scheduler, name) for name in ("init_metrics", "init_metrics_collector")
        )
        if metrics_first:
            _publish_metrics(scheduler, options, server_args, ranks)
        facts["prometheus_client_before_first_pool"] = "prometheus_client" in sys.modules
        hicache_path.build(scheduler, server_args, side, ranks)
        facts["tree_cache"] = type(scheduler.tree_cache).__name__
        if not metrics_first:
            _publish_metrics(scheduler, options, server_args, ranks)
    except Exception as error:
        report.write(error)
        raise
    report.write()


def _publish_metrics(
    scheduler: Any, options: Options, server_args: Any, ranks: hicache_path.Ranks
) -> None:
    """Let SGLang make its own scheduler metrics, labels and all.

    ``SchedulerMetricsCollector.init_new`` does (0.5.13 and later), before that
    ``Scheduler.init_metrics``. Like the scheduler, only an attention group's first rank logs
    statistics: one empty set.
    """
    if not options.metrics:
        return
    from sglang.srt.observability import metrics_collector

    features = {
        "enable_priority_scheduling": False,
        "enable_lora": False,
        "enable_hierarchical_cache": options.hicache,
    }
    own = metrics_collector.SchedulerMetricsCollector
    if hasattr(own, "init_new"):
        numbers = {"tp_rank": ranks.tp_rank, "pp_rank": ranks.pp_rank, "dp_rank": ranks.dp_rank}
        available = {"server_args": server_args, "ps": ranks, **numbers, **features}
        wanted = inspect.signature(own.init_new).parameters
        made = own.init_new(**{k: v for k, v in available.items() if k in wanted})
        collector, logs = made.collector, made.current_scheduler_metrics_enabled
    else:
        vars(scheduler).update(vars(ranks), server_args=server_args, **features)
        scheduler.init_metrics(ranks.tp_rank, ranks.pp_rank, ranks.dp_rank)
        collector, logs = scheduler.metrics_collector, scheduler.current_scheduler_metrics_enabled
    if logs:
        collector.log_stats(metrics_collector.SchedulerStats())


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
