"""The exporter's pages over HTTP or HTTPS."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET6
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from hicache_obs.exporter.collector import HostCollector
from hicache_obs.exporter.host import Host
from hicache_obs.exporter.page import render
from hicache_obs.exporter.watch import Watcher

Environ = dict[str, Any]
Start = Callable[..., Any]
Answer = tuple[list[Any], list[bytes]]
"""Status with headers, and body."""
_NEGOTIATED = ("HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING", "QUERY_STRING")
_MOST_ANSWERS = 8
"""Most forms of the same metrics that are kept; scrapers ask for one or two."""
_NOTHING_FROM_OUTSIDE = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"


@dataclass(frozen=True)
class Web:
    """Where and how the exporter is served; *certificate* and *key* together mean HTTPS, and
    *client_ca* that clients must show a certificate signed by it."""

    host: str
    port: int
    metrics_path: str = "/metrics"
    show_messages: bool = False
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None


class App:
    """The WSGI application: ``/metrics``, ``/``, ``/-/healthy``, ``/-/ready``."""

    def __init__(self, host: Host, watcher: Watcher, web: Web) -> None:
        registry = CollectorRegistry()
        registry.register(HostCollector(lambda: host.view))
        self._metrics = make_wsgi_app(registry)
        self._host, self._watcher, self._web = host, watcher, web
        self._rendered: tuple[object, dict[tuple[str, ...], Answer]] = (None, {})
        self._show_messages = web.show_messages or is_loopback(web.host)

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method not in ("GET", "HEAD"):
            return _answer(start, "405 Method Not Allowed", "only GET and HEAD are answered\n")
        body = self._get(environ, start)
        return body if method == "GET" else []

    def _get(self, environ: Environ, start: Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == self._web.metrics_path:
            return self._scrape(environ, start)
        if path == "/":
            page = render(
                self._host.view.snapshot,
                show_messages=self._show_messages,
                metrics_path=self._web.metrics_path,
            )
            return _answer(start, "200 OK", page, "text/html")
        if path == "/-/healthy":
            return self._healthy(start)
        if path == "/-/ready":
            return self._ready(start)
        return _answer(start, "404 Not Found", f"there are / and {self._web.metrics_path}\n")

    def _scrape(self, environ: Environ, start: Start) -> Iterable[bytes]:
        """The metrics; the same bytes as before where no series changed since."""
        rows = self._host.view.rows
        asked = tuple(environ.get(name, "") for name in _NEGOTIATED)
        rendered, answers = self._rendered
        if rendered is not rows:
            answers = {}
        if asked not in answers:
            head: list[Any] = []
            request = {**environ, "REQUEST_METHOD": "GET"}
            body = list(self._metrics(request, lambda *arguments: head.extend(arguments)))
            if self._host.view.rows is rows and len(answers) < _MOST_ANSWERS:
                answers = {**answers, asked: (head, body)}
                self._rendered = rows, answers
        else:
            head, body = answers[asked]
        start(*head)
        return body

    def _healthy(self, start: Start) -> Iterable[bytes]:
        if self._watcher.healthy:
            return _answer(start, "200 OK", "healthy\n")
        text = "the journals were not looked at for 30 s: does their disk answer?\n"
        return _answer(start, "503 Service Unavailable", text)

    def _ready(self, start: Start) -> Iterable[bytes]:
        reasons = self._host.not_ready()
        if not reasons:
            return _answer(start, "200 OK", "ready\n")
        return _answer(start, "503 Service Unavailable", "\n".join(reasons) + "\n")


def _answer(
    start: Start, status: str, text: str, content_type: str = "text/plain"
) -> Iterable[bytes]:
    body = text.encode("utf-8", "replace")
    headers = [
        ("Content-Type", f"{content_type}; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Security-Policy", _NOTHING_FROM_OUTSIDE),
    ]
    start(status, headers)
    return [body]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on *host*."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = 30
    """Seconds that a client may take to say what it wants."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a scrape is no news."""


def serve(app: App, web: Web) -> _Server:
    """Serve *app* in a thread; the server returned can be shut down.

    Raises:
        OSError: the address cannot be listened on, or a certificate cannot be read.
        ssl.SSLError: a certificate or key is none.
    """
    kind = _Server6 if ":" in web.host else _Server
    server = make_server(web.host, web.port, app, kind, _Handler)
    try:
        context = _tls(web)
        if context is not None:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
    except OSError:
        server.server_close()
        raise
    threading.Thread(target=server.serve_forever, name="hicache-obs-web", daemon=True).start()
    return server


def _tls(web: Web) -> ssl.SSLContext | None:
    if web.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(web.certificate, web.key)
    if web.client_ca is not None:
        context.load_verify_locations(web.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
