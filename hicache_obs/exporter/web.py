"""The exporter's pages over HTTP or HTTPS."""

from __future__ import annotations

import logging
import ssl
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from socket import AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY, has_dualstack_ipv6
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from hicache_obs.exporter.collector import HostCollector
from hicache_obs.exporter.host import Host
from hicache_obs.exporter.page import render
from hicache_obs.exporter.tls import Files, Tls
from hicache_obs.exporter.watch import Watcher

logger = logging.getLogger("hicache_obs.exporter")

Environ = dict[str, Any]
Start = Callable[..., Any]
Answer = tuple[list[Any], list[bytes]]
"""Status with headers, and body."""
_NEGOTIATED = ("HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING", "QUERY_STRING")
_MOST_ANSWERS = 8
"""Most forms of the same metrics that are kept; scrapers ask for one or two."""
_MOST_REFUSED = 64
"""Most refused clients that are remembered, to log each once."""
_OPEN = (
    "whoever reaches {where} reads everything that is served, without TLS: names of models, hosts "
    "and pods; give --web.tls-cert, --web.tls-key and --web.tls-client-ca, or listen on 127.0.0.1"
)
_NOTHING_FROM_OUTSIDE = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"


@dataclass(frozen=True)
class Web:
    """Where and how the exporter is served; with *tls* over HTTPS."""

    host: str
    port: int
    metrics_path: str = "/metrics"
    show_messages: bool = False
    tls: Files | None = None


class App:
    """The WSGI application: ``/metrics``, ``/``, ``/-/healthy``, ``/-/ready``."""

    def __init__(self, host: Host, watcher: Watcher, web: Web) -> None:
        registry = CollectorRegistry()
        registry.register(HostCollector(lambda: host.view))
        self._metrics = make_wsgi_app(registry)
        self._host, self._watcher, self._web = host, watcher, web
        self.notice = host.problems.notice
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
    tls: Tls | None = None
    notice: Callable[[str, str, str], None]
    """`Problems.notice`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._refused: set[tuple[str, str]] = set()

    def get_request(self) -> Any:
        """The next connection, under the certificate as it is now."""
        request, address = super().get_request()
        if self.tls is None:
            return request, address
        try:
            if self.tls.renew():
                logger.info("the changed certificate is in use")
        except OSError as error:
            text = f"the changed certificate is not used, the one before is: {error}"
            self.notice("tls", text, text)
        wrap = self.tls.context.wrap_socket
        return wrap(request, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What a client did is no fault of ours, and worth a line where its certificate failed."""
        error = sys.exc_info()[1]
        if isinstance(error, ssl.SSLError):
            level = logging.WARNING if self._first(client_address[0], error) else logging.DEBUG
            logger.log(level, "%s was refused: %s", client_address[0], error.reason or error)
        elif not isinstance(error, OSError):
            logger.error("an answer could not be given", exc_info=True)

    def _first(self, client: str, error: ssl.SSLError) -> bool:
        """Whether *client* is refused for this for the first time, of the last that were."""
        seen = client, error.reason
        if seen in self._refused:
            return False
        if len(self._refused) == _MOST_REFUSED:
            self._refused.clear()
        self._refused.add(seen)
        return True


class _Server6(_Server):
    address_family = AF_INET6

    def server_bind(self) -> None:
        """All addresses means those of IPv4 too."""
        if not self.server_address[0]:
            self.socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        super().server_bind()


class _Handler(WSGIRequestHandler):
    timeout = 30
    """Seconds that a client may take to say what it wants."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a scrape is no news."""


def serve(app: App, web: Web) -> _Server:
    """Serve *app* in a thread; the server returned can be shut down.

    Raises:
        OSError: the address cannot be listened on, or a certificate, key or authority cannot be
            read, or is none (`ssl.SSLError`).
    """
    tls = Tls(web.tls) if web.tls else None
    everywhere = not web.host and has_dualstack_ipv6()
    kind = _Server6 if ":" in web.host or everywhere else _Server
    server = make_server(web.host, web.port, app, kind, _Handler)
    server.tls, server.notice = tls, app.notice
    if tls is None and not is_loopback(web.host):
        logger.warning("%s", _OPEN.format(where=f"{web.host or '*'}:{server.server_port}"))
    threading.Thread(target=server.serve_forever, name="hicache-obs-web", daemon=True).start()
    return server
