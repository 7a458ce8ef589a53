"""Whether the Mooncake service that a store talks to answers: a plain connect, no native call."""

from __future__ import annotations

import socket
from typing import Any

from hicache_obs import classify

_CONNECT_TIMEOUT_S = 0.2


def reachable(mode: str, config: Any) -> bool | None:
    """Whether the store's client (standalone) or master (embedded) accepts a connection now.

    Asked after a failure only: ``setup_dummy`` answers -1 for five different causes, and
    ``health_check`` still says healthy for about a second after the client is gone.
    None if the address cannot be read.
    """
    name = "client_server_address" if mode == classify.STANDALONE else "master_server_address"
    host, _, port = str(getattr(config, name, "") or "").rpartition(":")
    if not host or not port.isdigit():
        return None
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S):
            return True
    except (OSError, OverflowError):
        return False
