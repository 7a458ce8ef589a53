"""Command line of the bench's server: what to build, and with which store."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

POOL_KINDS = ("mha", "mla", "asymmetric")
STEPS = ("attach", "detach", "attach-failing", "collect")


@dataclass(frozen=True)
class Options:
    """The parsed command line; picklable, so that every rank receives the same one."""

    target: str
    draft: str
    hicache: bool
    storage_backend: str
    extra_config: str
    attach: bool
    force_draft_allocator: str
    transfer_engine: bool
    page_layout: str
    ratio: float
    metrics: bool
    metrics_port: int
    server_port: int
    ranks: int
    nodes: int
    node_rank: int
    dist_address: str
    dp_size: int
    dp_attention: bool
    disaggregation: str
    decode_offload: bool
    engines: int
    second_config: str
    then: tuple[str, ...]
    attach_config: str
    failing_config: str
    model_name: str
    extra_metric_labels: str
    graceful_exit: bool
    exit_when_ready: bool
    report: str


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of ``server.py``."""
    parser = argparse.ArgumentParser(prog="server.py", description=__doc__)
    flag = argparse.BooleanOptionalAction
    parser.add_argument(
        "--target", choices=POOL_KINDS, default="mha", help="kind of the target model's pool"
    )
    parser.add_argument(
        "--draft", choices=(*POOL_KINDS, "none"), default="none", help="kind of the draft's pool"
    )
    parser.add_argument(
        "--hicache", action=flag, default=True, help="--no-hicache: a start without any host pool"
    )
    parser.add_argument(
        "--storage-backend", default="mooncake", help="SGLang's name of the backend, or none"
    )
    parser.add_argument(
        "--extra-config", default="", help="JSON for --hicache-storage-backend-extra-config"
    )
    parser.add_argument(
        "--attach",
        action=flag,
        default=True,
        help="--no-attach: build the pools for this backend, but attach an empty store in place of "
        "the vendor's, whose library is absent",
    )
    parser.add_argument(
        "--force-draft-allocator",
        choices=("", "default"),
        default="",
        help="0.5.20+: let the draft builder ask for this allocator (the fault of 0.5.14)",
    )
    parser.add_argument(
        "--transfer-engine",
        action="store_true",
        help="initialize SGLang's Mooncake transfer engine, as a server with a GPU does",
    )
    parser.add_argument("--page-layout", default="page_first_direct", help="hicache_mem_layout")
    parser.add_argument("--ratio", type=float, default=2.0, help="hicache_ratio")
    parser.add_argument("--metrics", action=flag, default=True, help="SGLang's enable_metrics")
    parser.add_argument("--metrics-port", type=int, default=0, help="port of /metrics; 0: none")
    parser.add_argument("--server-port", type=int, default=30000, help="ServerArgs.port")
    parser.add_argument("--model-name", default="bench-model", help="served_model_name")
    parser.add_argument("--extra-metric-labels", default="", help="JSON, as SGLang's own option")
    parser.add_argument(
        "--graceful-exit",
        action="store_true",
        help="at the end let SGLang release its host resources (gracefully_exit True)",
    )
    parser.add_argument("--exit-when-ready", action="store_true", help="stop once READY is printed")
    parser.add_argument(
        "--report", default="", help="each rank writes FILE.<engine>-<dp>-<tp>.json: what it built"
    )
    _add_topology(parser)
    _add_steps(parser)
    return parser


def _add_topology(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel ranks (tp_size)")
    parser.add_argument("--nodes", type=int, default=1, help="nnodes: hosts that share the ranks")
    parser.add_argument("--node-rank", type=int, default=0, help="which of them this one is")
    parser.add_argument("--dist-address", default="", help="dist_init_addr; needed with --nodes")
    parser.add_argument("--dp-size", type=int, default=1, help="data-parallel ranks")
    parser.add_argument("--dp-attention", action="store_true", help="enable_dp_attention")
    parser.add_argument(
        "--disaggregation",
        choices=("null", "prefill", "decode"),
        default="null",
        help="disaggregation_mode; a decode server keeps HiCache by its own radix cache",
    )
    parser.add_argument(
        "--decode-offload",
        action="store_true",
        help="a decode server whose only host pool is that of SGLang's offload manager",
    )
    parser.add_argument(
        "--engines",
        type=int,
        default=1,
        help="engines that one process starts one after another, all with the same server port",
    )
    parser.add_argument(
        "--second-config", default="", help="JSON: the extra config of every engine but the first"
    )


def _add_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--then",
        type=lambda text: tuple(text.split(",")) if text else (),
        default=(),
        help=f"steps that every rank takes before READY, of {', '.join(STEPS)}",
    )
    parser.add_argument(
        "--attach-config", default="", help="JSON: extra config of attach; default --extra-config"
    )
    parser.add_argument("--failing-config", default="", help="JSON: that of attach-failing")


def parse(argv: list[str] | None = None) -> Options:
    """Parse `argv` (default: the process's own) into `Options`."""
    parser = build_parser()
    parsed = parser.parse_args(argv)
    unknown = sorted(set(parsed.then) - set(STEPS))
    if unknown:
        parser.error(f"--then: no such step: {', '.join(unknown)}")
    return Options(**{field.name: getattr(parsed, field.name) for field in fields(Options)})
