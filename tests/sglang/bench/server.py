"""A miniature of SGLang's server start: its own functions, in its own order, without a model.

Run it in a process whose ``PYTHONPATH`` is ``<bench>/absent:<unpacked sglang>``; ``harness.py``
does. The order is that of ``python -m sglang.launch_server`` and ``Engine._launch_subprocesses``
(entrypoints/engine.py, 0.5.11 to 0.5.23): plug-ins, arguments, environment, plug-ins again, the
published configuration, the scheduler processes (SGLang's own ``_launch_scheduler_processes``, with
its data-parallel controller where there is one), readiness, ``/metrics``.

It prints ``READY`` and runs until SIGTERM or SIGINT. A rank that raises kills the tree: SGLang's
own launch-phase SIGQUIT handler does, or under a data-parallel controller the controller's death.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import options as bench_options


def main() -> int:
    """Start, print READY, wait for a signal, stop the ranks; the exit code."""
    options = bench_options.parse()
    _load_plugins()
    engines, shared = [], None
    for number in range(options.engines):
        if number and options.second_config:
            options = replace(options, extra_config=options.second_config)
        server_args = make_server_args(options)
        prepare(server_args)
        shared = shared or _share()
        engines.append(launch(options, number, server_args, shared))
    web = serve_metrics(options.metrics_port) if options.metrics and options.metrics_port else None

    leave = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: leave.set())
    print("READY", flush=True)
    if not options.exit_when_ready:
        leave.wait()

    if shared is not None:
        shared.stop.set()
    for pids, controller in engines:
        _end(pids, controller)
    if web is not None:
        web.should_exit = True
    gc.freeze()  # Python's last collections over SGLang's modules take seconds and free nothing
    return 0


def _load_plugins() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()


def make_server_args(options: bench_options.Options) -> Any:
    """Build SGLang's real ``ServerArgs`` for the tiny model in this folder."""
    from sglang.srt.server_args import ServerArgs

    labels = json.loads(options.extra_metric_labels) if options.extra_metric_labels else None
    return ServerArgs(
        model_path=str(Path(__file__).with_name("tiny_model")),
        served_model_name=options.model_name,
        skip_tokenizer_init=True,
        load_format="dummy",
        device="cpu",
        attention_backend="torch_native",
        disable_overlap_schedule=True,
        page_size=64,
        tp_size=options.ranks,
        nnodes=options.nodes,
        node_rank=options.node_rank,
        dist_init_addr=options.dist_address or None,
        dp_size=options.dp_size,
        enable_dp_attention=options.dp_attention,
        port=options.server_port,
        enable_metrics=options.metrics,
        extra_metric_labels=labels,
        **_cache_arguments(options),
        **_disaggregation_arguments(options),
    )


def _cache_arguments(options: bench_options.Options) -> dict[str, Any]:
    if not options.hicache:
        return {}
    backend = None if options.storage_backend == "none" else options.storage_backend
    return {
        # A decode server with the offload manager has a chunk cache in place of the tree.
        "enable_hierarchical_cache": not options.decode_offload,
        "hicache_ratio": options.ratio,
        "hicache_mem_layout": options.page_layout,
        "hicache_io_backend": "direct",
        "hicache_storage_backend": backend,
        "hicache_storage_backend_extra_config": options.extra_config or None,
    }


def _disaggregation_arguments(options: bench_options.Options) -> dict[str, Any]:
    if options.disaggregation == "null":
        return {}
    found: dict[str, Any] = {"disaggregation_mode": options.disaggregation}
    if options.disaggregation == "decode" and options.decode_offload:
        found["disaggregation_decode_enable_offload_kvcache"] = True
    elif options.disaggregation == "decode" and options.hicache:
        # HiCache on a decode server wants its radix cache, and that (0.5.11, 0.5.12) nixl.
        found["disaggregation_decode_enable_radix_cache"] = True
        found["disaggregation_transfer_backend"] = "nixl"
    return found


def prepare(server_args: Any) -> None:
    """Environment, plug-ins again, and the published configuration (0.5.18 and later)."""
    from sglang.srt.entrypoints import engine

    if hasattr(server_args, "resolve_once"):  # 0.5.20 and later
        server_args.resolve_once()
    engine._set_envs_and_config(server_args)
    _load_plugins()
    if hasattr(engine, "publish"):
        engine.publish(server_args, role="tokenizer")


def _share() -> Any:
    """What this process and its ranks say to each other; after SGLang has set the start method."""
    import multiprocessing

    from rank import Shared

    return Shared(stop=multiprocessing.Event(), done=multiprocessing.Semaphore(0))


def launch(
    options: bench_options.Options, number: int, server_args: Any, shared: Any
) -> tuple[list[int], Any]:
    """Start the ranks of one engine and wait until they are ready and have taken their steps.

    Returns the pids of the ranks, and the data-parallel controller's process or None.
    """
    from rank import run
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.server_args import PortArgs

    started, processes = Engine._launch_scheduler_processes(
        server_args,
        PortArgs.init_new(server_args),
        functools.partial(run, options, shared, number),
    )
    started.wait_for_ready()
    # The controller comes first; it knows the ranks that it has started by now.
    controller = processes[0] if options.dp_size > 1 else None
    pids = [pid for pid in started.all_child_pids if controller is None or pid != controller.pid]
    for _ in pids if options.then else ():
        while not shared.done.acquire(timeout=1):
            if not all(_lives(pid) for pid in pids):
                raise RuntimeError("bench: a rank died while it took its steps")
    return pids, controller


def _end(pids: list[int], controller: Any) -> None:
    """Wait until the ranks have ended, and stop the controller, which has no end of its own."""
    until = time.monotonic() + 15
    while any(_lives(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in pids:
        if _lives(pid):
            print(f"bench: rank process {pid} did not end, killing it", flush=True)
            os.kill(pid, signal.SIGKILL)
    if controller is not None:
        controller.kill()
        controller.join(timeout=15)


def _lives(pid: int) -> bool:
    """Whether a rank runs: one that ended is a zombie until its parent asks for it."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def serve_metrics(port: int) -> Any:
    """Serve SGLang's own ``/metrics`` (``add_prometheus_middleware``) on the loopback device."""
    import uvicorn
    from fastapi import FastAPI
    from sglang.srt.utils import add_prometheus_middleware

    app = FastAPI()
    add_prometheus_middleware(app)
    web = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        if not thread.is_alive():
            raise RuntimeError(f"the metrics server did not start on port {port}")
        thread.join(timeout=0.05)
    return web


def _main() -> int:
    """``main``; where it raises, nothing stays behind, as in SGLang's launch_server.py."""
    try:
        return main()
    except Exception:
        from sglang.srt.utils import kill_process_tree

        kill_process_tree(os.getpid(), include_parent=False)
        raise


if __name__ == "__main__":
    sys.exit(_main())
