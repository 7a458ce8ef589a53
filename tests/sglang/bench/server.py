"""A miniature of SGLang's server start: its own functions, in its own order, without a model.

Run it in a process whose ``PYTHONPATH`` is ``<bench>/absent:<unpacked sglang>``; ``harness.py``
does. The order is that of ``python -m sglang.launch_server`` and ``Engine._launch_subprocesses``
(entrypoints/engine.py, the same from 0.5.11 to 0.5.23): plug-ins, arguments, environment,
plug-ins again, one process a rank, readiness, ``/metrics``.

It prints ``READY`` and runs until SIGTERM or SIGINT. A rank that raises kills the tree: SGLang's
own launch-phase SIGQUIT handler does.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import options as bench_options


def main() -> int:
    """Start, print READY, wait for a signal, stop the ranks; the exit code."""
    options = bench_options.parse()

    from sglang.srt.plugins import load_plugins

    load_plugins()
    server_args = make_server_args(options)

    from sglang.srt.entrypoints.engine import _set_envs_and_config, _wait_for_scheduler_ready

    _set_envs_and_config(server_args)
    load_plugins()

    processes, readers, stop = start_ranks(options, server_args)
    _wait_for_scheduler_ready(readers, processes)
    web = serve_metrics(options.metrics_port) if options.metrics and options.metrics_port else None

    leave = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leave.set())
    print("READY", flush=True)
    if not options.exit_when_ready:
        leave.wait()

    stop.set()
    for process in processes:
        process.join(timeout=15)
        if process.is_alive():
            print(f"bench: rank process {process.pid} did not end, killing it", flush=True)
            process.kill()
    if web is not None:
        web.should_exit = True
    gc.freeze()  # Python's last collections over SGLang's modules take seconds and free nothing
    return 0


def make_server_args(options: bench_options.Options) -> Any:
    """Build SGLang's real ``ServerArgs`` for the tiny model in this folder."""
    from sglang.srt.server_args import ServerArgs

    backend = None if options.storage_backend == "none" else options.storage_backend
    labels = json.loads(options.extra_metric_labels) if options.extra_metric_labels else None
    cache: dict[str, Any] = {}
    if options.hicache:
        cache = {
            "enable_hierarchical_cache": True,
            "hicache_ratio": options.ratio,
            "hicache_mem_layout": options.page_layout,
            "hicache_io_backend": "direct",
            "hicache_storage_backend": backend,
            "hicache_storage_backend_extra_config": options.extra_config or None,
        }
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
        port=options.server_port,
        enable_metrics=options.metrics,
        extra_metric_labels=labels,
        **cache,
    )


def start_ranks(
    options: bench_options.Options, server_args: Any
) -> tuple[list[Any], list[Any], Any]:
    """Start one process a rank, as ``Engine._launch_scheduler_processes`` does."""
    import multiprocessing

    from rank import run
    from sglang.srt.server_args import PortArgs

    port_args = PortArgs.init_new(server_args)
    stop = multiprocessing.Event()
    processes, readers = [], []
    for tp_rank in range(options.ranks):
        reader, writer = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(
            target=run,
            args=(options, server_args, port_args, tp_rank),
            kwargs={"pipe_writer": writer, "stop": stop},
        )
        process.start()
        # The parent's copy goes, so that the death of a rank ends the pipe.
        writer.close()
        processes.append(process)
        readers.append(reader)
    return processes, readers, stop


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


if __name__ == "__main__":
    sys.exit(main())
