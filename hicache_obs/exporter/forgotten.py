"""Servers that were decommissioned: ``hicache-obs forget`` asks, the exporter obeys."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hicache_obs import runs
from hicache_obs.exporter.fold import Run

_PREFIX, _SUFFIX = "forget-", ".json"


@dataclass(frozen=True)
class Request:
    """Forget the ended runs and the counters of one server. *namespace*: "" for any; *host*: the
    pod where its network is its own."""

    namespace: str
    host: str
    server_port: str
    path: Path

    def is_of(self, run: Run) -> bool:
        host, port = run.server.address
        return self._names(run.namespace, (host,), port)

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with these labels is the server's."""
        hosts = (labels.get("host", ""), labels.get("pod", ""))
        return self._names(labels.get("namespace", ""), hosts, labels.get("server_port", ""))

    def _names(self, namespace: str, hosts: Collection[str], port: str) -> bool:
        here = self.host in hosts and self.server_port == port
        return here and self.namespace in ("", namespace)

    def done(self) -> None:
        self.path.unlink(missing_ok=True)


def ask(directory: Path, host: str, server_port: str, namespace: str = "") -> Path:
    """Leave a request in *directory*; it is obeyed by the exporter that keeps it.

    The file gets the directory's group: who asks is often root, and the exporter is not.

    Raises:
        OSError: the directory cannot be written.
    """
    name = f"{_PREFIX}{secrets.token_hex(4)}{_SUFFIX}"
    hidden = directory / f".{name}"
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o640)
        with contextlib.suppress(OSError):
            os.fchown(fd, -1, directory.stat().st_gid)
        row = {"namespace": namespace} if namespace else {}
        json.dump(row | {"host": host, "server_port": server_port}, file)
    path = directory / name
    hidden.rename(path)
    return path


def requests(directory: Path, notice: Callable[[str, str, str], None]) -> list[Request]:
    """The requests that wait in *directory*."""
    found = []
    for path in sorted(directory.glob(f"{_PREFIX}*{_SUFFIX}")):
        try:
            with os.fdopen(runs.open_file(path), encoding="utf-8") as file:
                row = json.load(file)
            server = str(row["host"]), str(row["server_port"])
            found.append(Request(str(row.get("namespace", "")), *server, path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            notice("forget", str(path), f"{path} is no request to forget a server: {error}")
    return found
