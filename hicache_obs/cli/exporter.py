"""``hicache-obs exporter``: one process a host that serves what the journals tell."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click

from hicache_obs.cli.directories import journal_directories
from hicache_obs.cli.duration import Duration
from hicache_obs.exporter.host import Host
from hicache_obs.exporter.standing import FAILED_POD_S, FAILED_RUN_S
from hicache_obs.exporter.tls import Files
from hicache_obs.exporter.watch import Watcher
from hicache_obs.exporter.web import App, Web, serve
from hicache_obs.otel import settings as otel
from hicache_obs.runs import MAX_DEAD_RUNS

logger = logging.getLogger("hicache_obs.exporter")
_LEVELS = ("debug", "info", "warning", "error")


class Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT`` (all addresses)."""

    name = "address"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).rpartition(":")
        number = int(port) if port.isascii() and port.isdigit() else -1
        bare = ":" in host and not (host.startswith("[") and host.endswith("]"))
        if not colon or not 0 <= number <= 65535 or bare:
            text = f"{value!r} is no address; write HOST:PORT, [IPV6]:PORT or :PORT"
            self.fail(text, param, ctx)
        return host.strip("[]"), number


@click.command()
@journal_directories
@click.option(
    "--web.listen-address",
    "address",
    type=Address(),
    default="127.0.0.1:9748",
    show_default=True,
    help="Address to serve on.",
)
@click.option(
    "--web.telemetry-path",
    "metrics_path",
    default="/metrics",
    show_default=True,
    help="Path of the metrics.",
)
@click.option(
    "--web.show-messages",
    "show_messages",
    is_flag=True,
    help="Show the texts of exceptions on the status page; without it only on a loopback address.",
)
@click.option(
    "--web.tls-cert",
    "certificate",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Certificate: serve HTTPS.",
)
@click.option(
    "--web.tls-key",
    "key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Key of the certificate.",
)
@click.option(
    "--web.tls-client-ca",
    "client_ca",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Only answer clients with a certificate signed by this one.",
)
@click.option(
    "--retention.failed-run",
    "failed_run_s",
    type=Duration(),
    default=FAILED_RUN_S,
    show_default="24h",
    help="How long the failure of an ended run stays when no newer run supersedes it.",
)
@click.option(
    "--retention.failed-pod",
    "failed_pod_s",
    type=Duration(),
    default=FAILED_POD_S,
    show_default="15m",
    help="How long alerts fire on the failure of a pod in which nothing is started again (a "
    "replaced pod has no newer run); longer than a kubelet waits before it restarts one, 5m.",
)
@click.option(
    "--retention.runs",
    "kept_runs",
    type=click.IntRange(min=0),
    default=MAX_DEAD_RUNS,
    show_default=True,
    help="Ended runs whose journals are kept, a directory.",
)
@click.option(
    "--log.level",
    "level",
    type=click.Choice(_LEVELS),
    default="info",
    show_default=True,
    help="Least level that is logged.",
)
@click.option(
    "--log.format",
    "log_format",
    type=click.Choice(["logfmt", "json"]),
    default="logfmt",
    show_default=True,
    help="How lines are written to stderr.",
)
def exporter(
    *,
    directories: tuple[Path, ...],
    address: tuple[str, int],
    metrics_path: str,
    show_messages: bool,
    certificate: Path | None,
    key: Path | None,
    client_ca: Path | None,
    failed_run_s: float,
    failed_pod_s: float,
    kept_runs: int,
    level: str,
    log_format: str,
) -> None:
    """Follow the journals of this host and serve them: /metrics, a status page at /,
    /-/healthy and /-/ready.

    Run one a host (or a pod). It needs neither SGLang nor Mooncake. A directory that is not
    there yet is waited for. Where OTEL_EXPORTER_OTLP_ENDPOINT is set, the metrics and each start
    as a trace are sent there too. Ends with 0 after SIGTERM or SIGINT, 1 if it cannot serve, 2 on
    a bad flag.

    Example: hicache-obs exporter --journal.dir /var/lib/hicache-obs --web.listen-address :9748
    """
    tls = _checked(metrics_path, certificate, key, client_ca)
    _log(level, log_format)
    web = Web(*address, metrics_path, show_messages, tls)
    host = Host(
        directories, failed_run_s=failed_run_s, failed_pod_s=failed_pod_s, kept_runs=kept_runs
    )
    watcher = Watcher(host)
    try:
        server = serve(App(host, watcher, web), web)
    except OSError as error:
        where = f"{web.host}:{web.port}"
        click.echo(f"hicache-obs exporter: cannot serve on {where}: {error}", err=True)
        sys.exit(1)
    leave = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        leave.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    stop_sending = _send(host)
    watcher.start()
    scheme = "https" if certificate else "http"
    logger.info("serving %s://%s:%d%s", scheme, web.host or "*", server.server_port, metrics_path)
    leave.wait()
    server.shutdown()
    watcher.stop()
    stop_sending()
    host.close()


def _send(host: Host) -> Callable[[], None]:
    """Send over OTLP what the ``OTEL_*`` variables ask for; returns what ends it."""
    settings = otel.read(os.environ)
    for text in settings.problems:
        host.problems.notice("otlp_settings", text, text)
    if not settings.protocols:
        return lambda: None
    try:
        from hicache_obs.otel.export import start
    except ImportError as error:
        text = (
            f"OTEL_* variables ask for OpenTelemetry, which is not installed ({error}): "
            "pip install 'hicache-obs[otel]'"
        )
        host.problems.notice("otlp_settings", text, text)
        return lambda: None
    for what, protocol in settings.protocols.items():
        logger.info("%s are sent over OTLP (%s)", what, protocol)
    return start(host, settings, socket.gethostname())


def _checked(
    metrics_path: str, certificate: Path | None, key: Path | None, client_ca: Path | None
) -> Files | None:
    """The files of TLS, if it is asked for."""
    if not metrics_path.startswith("/") or metrics_path in ("/", "/-/healthy", "/-/ready"):
        text = f"{metrics_path!r} cannot be the path of the metrics; write for example /metrics"
        raise click.UsageError(text)
    if (certificate is None) != (key is None):
        raise click.UsageError("--web.tls-cert and --web.tls-key go together")
    if client_ca is not None and certificate is None:
        raise click.UsageError("--web.tls-client-ca needs --web.tls-cert and --web.tls-key")
    return Files(certificate, key, client_ca) if certificate and key else None


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        row = {
            "ts": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
        }
        return json.dumps(row)


class _Logfmt(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z")
        message = json.dumps(record.getMessage(), ensure_ascii=False)
        return f"ts={time} level={record.levelname.lower()} msg={message}"


def _log(level: str, log_format: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Logfmt())
    for name, least in (("hicache_obs", level), ("opentelemetry", "warning")):
        root = logging.getLogger(name)
        root.handlers[:] = [handler]
        root.setLevel(least.upper())
        root.propagate = False
