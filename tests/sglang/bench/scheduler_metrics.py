"""SGLang's own scheduler metrics of one rank, so that ``/metrics`` has series to join with."""

from __future__ import annotations

import json
from typing import Any

from options import Options


def publish(options: Options, server_args: Any, tp_rank: int) -> None:
    """Create the real ``SchedulerMetricsCollector`` and log one empty set of statistics.

    observability/metrics_collector.py. Label names and order as in 0.5.14:1054 and 0.5.23:1382;
    like SGLang, only the first attention rank does it.
    """
    if not options.metrics or tp_rank != 0:
        return
    from sglang.srt.observability.metrics_collector import (
        SchedulerMetricsCollector,
        SchedulerStats,
    )

    labels: dict[str, Any] = {
        "model_name": options.model_name,
        "engine_type": "unified",
        "tp_rank": tp_rank,
        "pp_rank": 0,
        "moe_ep_rank": 0,
    }
    if options.extra_metric_labels:
        labels.update(json.loads(options.extra_metric_labels))
    collector = SchedulerMetricsCollector(
        labels=labels, server_args=server_args, enable_hierarchical_cache=options.hicache
    )
    collector.log_stats(SchedulerStats())
