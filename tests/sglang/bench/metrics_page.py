"""SGLang's own ``/metrics`` over a multi-process directory, in a process of its own.

A server that dies during start-up never serves a page. This one stands beside it and shows what
the dead worker left in the directory. Run as a program: ``metrics_page.py PORT``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

if __package__:
    from .harness import BENCH, Server, environment, free_port
else:
    from harness import BENCH, Server, environment, free_port


def start_metrics_page(release: str, env: Mapping[str, str], folder: Path) -> Server:
    """Start the page over `env`'s ``PROMETHEUS_MULTIPROC_DIR``; leaving the context ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(BENCH / "metrics_page.py"), str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(release, env),
            cwd=folder,
            start_new_session=True,
        )
    return Server(process, folder, port)


def main() -> None:
    """Serve until killed."""
    import server

    server.serve_metrics(int(sys.argv[1]))
    threading.Event().wait()


if __name__ == "__main__":
    main()
