"""Start the bench's server from a test, a benchmark or the demo, and look at what it does.

    with Mooncake(logs) as mooncake, start_server("0.5.14", mooncake, draft="mha") as server:
        code = server.wait(timeout=120)

One server runs one SGLang release in processes of its own; nothing of SGLang is imported here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from .mooncake_services import Mooncake, free_port
else:
    from mooncake_services import Mooncake, free_port

__all__ = [
    "RELEASES",
    "Mooncake",
    "Server",
    "free_port",
    "run_python",
    "sglang_path",
    "start_server",
]

RELEASES = (
    "0.5.11",
    "0.5.12",
    "0.5.13",
    "0.5.14",
    "0.5.15.post1",
    "0.5.16",
    "0.5.18",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
BENCH = Path(__file__).resolve().parent
REPOSITORY = BENCH.parents[2]


def cache_root() -> Path:
    """Return the folder of unpacked releases: ``HICACHE_OBS_CACHE``, else ``<repo>/.cache``.

    Where the bench was installed with the package, it is ``~/.cache/hicache-obs``.
    """
    if os.environ.get("HICACHE_OBS_CACHE"):
        return Path(os.environ["HICACHE_OBS_CACHE"])
    in_checkout = (REPOSITORY / "pyproject.toml").is_file()
    return REPOSITORY / ".cache" if in_checkout else Path.home() / ".cache" / "hicache-obs"


def sglang_path(release: str) -> Path:
    """Return the folder of an unpacked release; `FileNotFoundError` says how to get it."""
    path = cache_root() / "sglang" / release
    if not (path / "sglang").is_dir():
        raise FileNotFoundError(f"{path} is not there: run python {BENCH / 'fetch.py'} {release}")
    return path


def mooncake_path(version: str) -> Path:
    """Return the folder of another Mooncake release, to be put first in ``paths``."""
    path = cache_root() / "mooncake" / version
    if not (path / "mooncake").is_dir():
        raise FileNotFoundError(
            f"{path} is not there: run python {BENCH / 'fetch.py'} --mooncake-old"
        )
    return path


def environment(
    release: str, env: Mapping[str, str] | None = None, paths: Sequence[Path | str] = ()
) -> dict[str, str]:
    """Return the environment of a child that runs `release`.

    `paths` come first on ``PYTHONPATH``: another Mooncake, or a folder with a plug-in and its
    ``*.dist-info/entry_points.txt``. `env` is laid over the process's own environment.
    """
    child = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "PROMETHEUS_MULTIPROC_DIR")
        and not k.startswith("HICACHE_OBS_")  # settings of whoever starts it are not the test's
    }
    # Leave it unset: 0.5.16+ would import the real sgl_kernel (sglang/kernels).
    child.pop("SGLANG_USE_CPU_ENGINE", None)
    child.update(
        PYTHONPATH=os.pathsep.join(
            [*(str(path) for path in paths), str(BENCH / "absent"), str(sglang_path(release))]
        ),
        PYTHONWARNINGS="ignore",
        HF_HUB_OFFLINE="1",
        GLOG_logtostderr="1",
    )
    child.update(env or {})
    return child


class Server:
    """A running ``server.py`` and all its descendants."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, metrics_port: int) -> None:
        self.process = process
        self.folder = folder
        self.metrics_port = metrics_port
        self._log_path = folder / "server.log"
        self._told = 0

    @property
    def pid(self) -> int:
        """Process id of the server's first process, which is also its process group."""
        return self.process.pid

    @property
    def log(self) -> str:
        """Everything the server and its ranks have printed so far (stdout and stderr)."""
        return self._log_path.read_text(errors="replace")

    @property
    def ready(self) -> bool:
        """Whether the server has said READY."""
        return "\nREADY\n" in "\n" + self.log

    def wait_ready(self, timeout: float = 90) -> None:
        """Wait for READY; `RuntimeError` with the log's end if it dies or takes too long."""
        deadline = time.monotonic() + timeout
        while not self.ready:
            if self.process.poll() is not None and not self.ready:
                raise RuntimeError(
                    f"server ended with {self.process.returncode}\n{self.log[-4000:]}"
                )
            if time.monotonic() > deadline:
                raise RuntimeError(f"server is not ready after {timeout} s\n{self.log[-4000:]}")
            time.sleep(0.1)

    def wait(self, timeout: float = 90) -> int:
        """Wait for the end and return the exit code (negative: the signal's number)."""
        return self.process.wait(timeout=timeout)

    def scrape(self) -> str:
        """Return the body of SGLang's ``/metrics``."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            body: bytes = answer.read()
        return body.decode()

    def terminate(self, timeout: float = 30) -> int:
        """Send SIGTERM to the first process, as a service manager does; return the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=timeout)

    def reports(self) -> list[dict[str, Any]]:
        """Return what each rank wrote about its real objects (``rank_report.py``), by rank."""
        found = [json.loads(path.read_text()) for path in self.folder.glob("report.*.json")]
        return sorted(found, key=lambda r: (r["engine"], r["dp_rank"] or 0, r["rank"]))

    def tell(
        self, step: str, config: Mapping[str, Any] | None = None, timeout: float = 90
    ) -> list[dict[str, Any]]:
        """Let every rank take one more step (``attaching.py``); what each of them answered."""
        before = [len(report["steps"]) for report in self.reports()]
        path = self.folder / f"report.tell.{self._told}"
        self._told += 1
        told = {"step": step, "config": "" if config is None else json.dumps(config)}
        path.with_suffix(".part").write_text(json.dumps(told))
        path.with_suffix(".part").rename(path)
        deadline = time.monotonic() + timeout
        while True:
            steps = [report["steps"] for report in self.reports()]
            if all(len(taken) > old for taken, old in zip(steps, before, strict=True)):
                return [taken[-1] for taken in steps]
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no answer to {step}\n{self.log[-4000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the whole process group and reap the first process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def start_server(
    release: str,
    mooncake: Mooncake | None = None,
    env: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    paths: Sequence[Path | str] = (),
    extra_config: Mapping[str, Any] | None = None,
    extra_metric_labels: Mapping[str, str] | None = None,
    metrics_port: int | None = None,
    host: str | None = None,
    **options: Any,
) -> Server:
    """Start ``server.py`` with `release`; return at once.

    `options` are those of ``options.py`` with underscores: ``target="mla"``, ``draft="mha"``,
    ``storage_backend="nixl"``, ``attach=False``, ``hicache=False``, ``metrics=False``, ``ranks=2``,
    ``exit_when_ready=True``, ``server_port=...``; a mapping is handed over as JSON
    (``attach_config``, ``failing_config``, ``second_config``). With a `mooncake` its extra config
    is used, else `extra_config`. Without either, and with no storage backend named, there is no
    store. `folder` keeps log and reports (default: a new temporary folder). `host` is the host's
    name that the server sees, in a UTS namespace of its own; only root may do that.
    """
    folder = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="hicache-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    config = extra_config if extra_config is not None else mooncake and mooncake.extra_config()
    options.setdefault("storage_backend", "none" if config is None else "mooncake")
    port = free_port() if metrics_port is None else metrics_port
    options.update(metrics_port=port, report=str(folder / "report"))
    if config is not None:
        options["extra_config"] = json.dumps(config)
    if extra_metric_labels:
        options["extra_metric_labels"] = json.dumps(extra_metric_labels)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*_on_host(host), _python(), str(BENCH / "server.py"), *_arguments(options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(release, env, paths),
            cwd=folder,
            start_new_session=True,
        )
    return Server(process, folder, port)


def run_python(
    release: str,
    code_or_path: str | Path,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    plugin_dirs: Sequence[Path | str] = (),
    *,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a small program (source text, or a path) in the environment of `release`."""
    what = [str(code_or_path)] if isinstance(code_or_path, Path) else ["-c", code_or_path]
    return subprocess.run(
        [_python(), *what, *args],
        env=environment(release, env, plugin_dirs),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _on_host(host: str | None) -> list[str]:
    """The start of a command that runs the rest on a "host" of this name."""
    if host is None:
        return []
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]


def _python() -> str:
    return os.environ.get("HICACHE_OBS_BENCH_PYTHON") or sys.executable


def _arguments(options: Mapping[str, Any]) -> list[str]:
    arguments = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            if value or name in ("hicache", "attach", "metrics"):
                arguments.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, Mapping):
            arguments.append(f"--{flag}={json.dumps(value)}")
        else:
            arguments.append(f"--{flag}={value}")
    return arguments
