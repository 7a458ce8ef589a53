"""The recording rules: what dashboards sum over a fleet, and what an alert counts over time.

A rank is counted once, also where the exporter and SGLang's own /metrics are both scraped: the
exporter's rows win, by the label ``host`` that only the exporter writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hicache_obs.rules.templates import MODEL, RANK, SERVER, by, once


@dataclass(frozen=True)
class Recording:
    """One recording rule, named level:metric:operation."""

    name: str
    expr: str


FAILED_STARTS = "server:hicache_worker_starts_failed:max"


def recordings() -> tuple[Recording, ...]:
    """Every recording rule."""
    pools = ("role", "pool", "allocator")
    failure = ("stage", "mode", *pools, "code", "cause")
    return (
        _sum("hicache_host_pool_bytes", pools),
        _sum("hicache_registered_bytes", ("mode", *pools)),
        _sum("hicache_worker_up", ()),
        _sum("hicache_failure_active", failure, " == 1"),
        # A start of eight ranks that fails is one failed start, whichever of them failed first.
        # What failed outside HiCache has a cause and no stage. An exporter whose address changes
        # is there twice for a while.
        Recording(
            FAILED_STARTS,
            f"max {by(SERVER)} (\n  sum {by(RANK)} (\n"
            "    max without (job, instance) (\n"
            '      hicache_worker_starts_total{host!="", outcome="failure"}\n'
            '      unless hicache_worker_starts_total{stage="", cause!=""}\n'
            "    )\n  )\n)",
        ),
    )


def _sum(metric: str, labels: tuple[str, ...], only: str = "") -> Recording:
    rows = once(f"{metric}{{HOST}}{only}").replace("\n", "\n    ")
    return Recording(
        f"model:{metric}:sum",
        f"sum {by((*MODEL, *labels))} (\n  max without (job, instance) (\n    {rows}\n  )\n)",
    )
