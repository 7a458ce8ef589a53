"""What the Mooncake service that a store talks to says of itself, asked after a failure only."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from hicache_obs import classify, faults
from hicache_obs.hooks import memory

_CONNECT_TIMEOUT_S = 0.2
PATIENCE_S = 0.25
"""Longest time that SGLang's exception waits for an answer, name resolution included."""
_Answer = TypeVar("_Answer")


def ask(store: Any, mode: str) -> tuple[int | None, bool | None]:
    """The store's ``health_check`` and whether its peer accepts a connection; None if not told.

    A peer that is gone is not asked for its health: that call has no deadline of its own.
    """
    config = memory.vars_of(store).get("config")
    there = reachable(mode, config)
    return (None if there is False else _in_time(lambda: _health(store))), there


def reachable(mode: str, config: Any) -> bool | None:
    """Whether the store's client (standalone) or master (embedded) accepts a connection now.

    A plain connect, no native call: ``setup_dummy`` answers -1 for five different causes, and
    ``health_check`` still says healthy for about a second after the client is gone.
    None if the address cannot be read, or if its name is not resolved in time.
    """
    name = "client_server_address" if mode == classify.STANDALONE else "master_server_address"
    host, _, port = str(getattr(config, name, "") or "").rpartition(":")
    if not host or not port.isdigit():
        return None
    return _in_time(lambda: _connects(host.strip("[]"), int(port)))


def _connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT_S):
            return True
    except (OSError, OverflowError):
        return False


def _health(store: Any) -> int | None:
    check = getattr(memory.vars_of(store).get("store"), "health_check", None)
    return None if check is None else int(check())


def _in_time(question: Callable[[], _Answer]) -> _Answer | None:
    """The answer, or None where it takes longer than ``PATIENCE_S`` or cannot be had."""
    answer: list[_Answer] = []

    def put() -> None:
        try:
            answer.append(question())
        except Exception as error:  # noqa: BLE001 - no answer is an answer
            faults.count("peer", error)

    thread = threading.Thread(target=put, name="hicache-obs-peer", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return answer[0] if answer else None
