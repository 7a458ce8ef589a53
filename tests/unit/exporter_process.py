"""``hicache-obs exporter`` as a process of its own, and a worker whose journal it reads."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent


def record(directory: Path, variables: Mapping[str, str]) -> None:
    """A worker that had the bug, and died. Its hicache-obs is this one, or that of a
    ``PYTHONPATH`` among *variables*."""
    code = variables.get("PYTHONPATH", str(HERE.parents[1]))
    done = subprocess.run(
        [sys.executable, HERE / "record_events.py"],
        env={
            **os.environ,
            "PYTHONSAFEPATH": "1",
            "HICACHE_OBS_STATE_DIR": str(directory),
            **variables,
            "PYTHONPATH": f"{code}:{HERE}",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


class Exporter:
    """A running exporter on a port that it chose; *python* is what runs the program, if another."""

    def __init__(
        self,
        *flags: str,
        env: dict[str, str] | None = None,
        python: Sequence[str] = (sys.executable, "-m", "hicache_obs.cli"),
    ) -> None:
        command = [*python, "exporter"]
        if not any(flag.startswith("--web.listen-address") for flag in flags):
            command.append("--web.listen-address=127.0.0.1:0")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - see close
        self.process = subprocess.Popen(
            [*command, *flags], stderr=self._stderr, env=os.environ | (env or {})
        )
        while not (match := re.search(r"serving (https?)://([^/]*):(\d+)/", "".join(self.log))):
            assert self.process.poll() is None, self.log
            time.sleep(0.01)
        self.scheme, self.port = match[1], int(match[3])

    @property
    def log(self) -> list[str]:
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0).decode().splitlines()

    def get(self, path: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
        url = f"{self.scheme}://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait_for(self, text: str, path: str = "/metrics", seconds: float = 5) -> float:
        """Seconds until *text* (a regular expression) is on the page."""
        started = time.monotonic()
        while not re.search(text, self.get(path)[1]):
            assert time.monotonic() - started < seconds, self.get(path)[1]
            time.sleep(0.01)
        return time.monotonic() - started

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=10)

    def close(self) -> None:
        self._stderr.close()
