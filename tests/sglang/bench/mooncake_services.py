"""The real Mooncake services, started for one test and gone after it.

``mooncake_master`` and ``mooncake_client`` are the native programs of the wheel
``mooncake-transfer-engine-non-cuda``; nothing here imitates them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_PORTS = range(18_000, 29_000)
"""Below the kernel's ephemeral ports, above those that Mooncake draws, beside SGLang's 30000: what
a server listens on a few seconds from now is not taken by a connection in between."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.choice(_PORTS)
            probe.bind(("127.0.0.1", port))
            return port


class Mooncake:
    """A master and, unless `standalone` is false, a standalone client that owns the segment.

    Use it as a context manager. All processes get a process group of their own and are killed on
    exit; their output is kept in `log_dir` (``master.log``, ``client.log``) and holds the only
    native reason of a refusal. `package` is the ``mooncake`` folder of another release: master and
    client libraries of different releases may not talk to each other.
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        standalone: bool = True,
        segment: str = "64 MB",
        package: Path | None = None,
        timeout: float = 20,
    ) -> None:
        self.log_dir = log_dir
        self.standalone = standalone
        self.segment = segment
        self.package = package
        self.timeout = timeout
        self.master_port = free_port()
        self.client_port = free_port()
        self.http_port = free_port()
        self.metrics_port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def master_address(self) -> str:
        """Address of the master's RPC port."""
        return f"127.0.0.1:{self.master_port}"

    @property
    def client_address(self) -> str:
        """Address of the standalone client, as SGLang's ``client_server_address``."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def client_pid(self) -> int:
        """Process id of the running standalone client."""
        return self._processes["client"].pid

    @property
    def metadata_server(self) -> str:
        """URL of the master's own HTTP metadata server."""
        return f"http://127.0.0.1:{self.http_port}/metadata"

    def extra_config(self, standalone: bool | None = None, **overrides: Any) -> dict[str, Any]:
        """Return what SGLang takes as ``hicache_storage_backend_extra_config``.

        Keys as read by mem_cache/storage/mooncake_store/mooncake_store.py. Embedded
        (``standalone=False``) means TCP and peer-to-peer metadata; both can be overridden.
        """
        config: dict[str, Any] = {
            "master_server_address": self.master_address,
            "check_server": False,
        }
        if self.standalone if standalone is None else standalone:
            config.update(standalone_storage=True, client_server_address=self.client_address)
        else:
            config.update(
                standalone_storage=False,
                local_hostname="127.0.0.1",
                metadata_server="P2PHANDSHAKE",
                protocol="tcp",
                device_name="",
                global_segment_size=64 << 20,
            )
        config.update(overrides)
        return config

    def __enter__(self) -> Mooncake:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        try:
            self.start_master()
            if self.standalone:
                self.start_client()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start_master(self) -> None:
        """Start ``mooncake_master`` and wait until it accepts connections."""
        self._start(
            "master",
            self.master_port,
            f"--rpc_port={self.master_port}",
            f"--metrics_port={self.metrics_port}",
            "--enable_http_metadata_server=true",
            "--http_metadata_server_host=127.0.0.1",
            f"--http_metadata_server_port={self.http_port}",
        )

    def start_client(self) -> None:
        """Start the standalone ``mooncake_client`` and wait until it accepts connections."""
        self._start(
            "client",
            self.client_port,
            "--host=127.0.0.1",
            f"--port={self.client_port}",
            f"--master_server_address={self.master_address}",
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            f"--global_segment_size={self.segment}",
        )

    def kill_client(self) -> None:
        """Kill the standalone client as a crash would (SIGKILL)."""
        self._stop("client", signal.SIGKILL)

    def stop(self) -> None:
        """Stop what still runs; may be called more than once."""
        for name in ("client", "master"):
            self._stop(name, signal.SIGTERM)

    def log(self, name: str) -> str:
        """Return what ``master`` or ``client`` has printed so far."""
        path = self.log_dir / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, name: str, port: int, *arguments: str) -> None:
        program = package_dir(self.package) / f"mooncake_{name}"
        with (self.log_dir / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(program), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.log_dir,
                env=dict(os.environ, GLOG_logtostderr="1"),
            )
        self._processes[name] = process
        deadline = time.monotonic() + self.timeout
        while not _accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"mooncake_{name} does not listen on port {port}\n{self.log(name)}"
                )
            time.sleep(0.05)

    def _stop(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        for attempt in (number, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, attempt)
            try:
                process.wait(timeout=5)
                return
            except subprocess.TimeoutExpired:
                continue


def package_dir(folder: Path | None = None) -> Path:
    """Return `folder`, else that of the installed ``mooncake``, with its programs executable."""
    if folder is None:
        spec = importlib.util.find_spec("mooncake")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError(
                "mooncake-transfer-engine-non-cuda is not installed; `make demo` in a checkout "
                "installs it, with PyTorch and SGLang"
            )
        folder = Path(next(iter(spec.submodule_search_locations)))
    for name in ("mooncake_master", "mooncake_client"):
        program = folder / name
        if program.exists() and not os.access(program, os.X_OK):
            program.chmod(0o755)
    return folder


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
