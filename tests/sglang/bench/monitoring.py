"""The real exporter, Prometheus and Alertmanager on free ports, and a webhook that keeps what
it is sent.

    with (
        Webhook() as webhook,
        Alertmanager(folder, config, webhook) as alertmanager,
        Prometheus(folder, scrape, rules=rules, alertmanager=alertmanager) as prometheus,
    ):
        prometheus.query("up")

The programs are those of Debian's ``prometheus`` and ``prometheus-alertmanager``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING or __package__:
    from .mooncake_services import free_port
else:
    from mooncake_services import free_port

PACKAGES = {"prometheus": "prometheus", "prometheus-alertmanager": "prometheus-alertmanager"}
"""Program and the Debian package that has it."""


def missing() -> list[str]:
    """The Debian packages that are not installed."""
    return [package for program, package in PACKAGES.items() if not shutil.which(program)]


class Notice(NamedTuple):
    """One call of a webhook: when (seconds since the epoch), at which path, with what."""

    time: float
    path: str
    body: dict[str, Any]

    @property
    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.body["alerts"]
        return found


class Webhook:
    """A receiver on loopback."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                now = time.time()
                text = self.rfile.read(int(self.headers["Content-Length"]))
                webhook.notices.append(Notice(now, self.path, json.loads(text)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: notices are kept."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def wait_for(self, wanted: Callable[[Notice], bool], timeout_s: float) -> Notice:
        """The first notice that is *wanted*, also one that came before; `TimeoutError` if none."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = next((one for one in list(self.notices) if wanted(one)), None)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                told = [(one.path, one.body["status"]) for one in self.notices]
                raise TimeoutError(f"no such notice within {timeout_s:g} s; there were {told}")
            time.sleep(0.02)

    def __enter__(self) -> Webhook:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Program:
    """A server of its own process group, with its log in *folder*.

    *command* is how to start it, where that is not its name.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str] = ()) -> None:
        self.name = name
        self.command = list(command) or [name]
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running program."""
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    def start(self, *flags: str, timeout_s: float = 30) -> None:
        with (self.folder / f"{self.name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*self.command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                end = (self.folder / f"{self.name}.log").read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"{self.name} is not ready: {end}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=10)

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON at *path*; `RuntimeError` with the server's words if it refuses."""
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{self.name}: {error.read().decode()[:2000]}") from None

    def __exit__(self, *_: object) -> None:
        self.stop()


class Exporter(_Program):
    """``hicache-obs exporter`` over the journals in *state_dir*, as it is installed here."""

    def __init__(self, folder: Path, state_dir: Path) -> None:
        command = (sys.executable, "-m", "hicache_obs.cli", "exporter")
        super().__init__("exporter", folder / "exporter", command)
        self.state_dir = state_dir

    def __enter__(self) -> Exporter:
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.start(f"--journal.dir={self.state_dir}", f"--web.listen-address={self.address}")
        return self

    def metrics(self) -> str:
        """What it serves now."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            return str(answer.read().decode())


class Alertmanager(_Program):
    """Alertmanager with *config*, its webhooks sent to *webhook*."""

    def __init__(self, folder: Path, config: Mapping[str, Any], webhook: Webhook) -> None:
        super().__init__("prometheus-alertmanager", folder / "alertmanager")
        text = json.dumps(config)
        for receiver in config["receivers"]:
            for hook in receiver.get("webhook_configs", ()):
                there = urllib.parse.urlsplit(hook["url"])
                text = text.replace(hook["url"], f"http://{webhook.address}{there.path}")
        (self.folder / "alertmanager.yml").write_text(text)

    def __enter__(self) -> Alertmanager:
        self.start(
            "--config.file=alertmanager.yml",
            "--storage.path=data",
            f"--web.listen-address={self.address}",
            "--cluster.listen-address=",
        )
        return self


class Prometheus(_Program):
    """Prometheus over *scrape*, a list as under ``scrape_configs``.

    *interval* is both that of scrapes and of rules, as Prometheus writes it.
    """

    def __init__(
        self,
        folder: Path,
        scrape: Sequence[Mapping[str, Any]],
        *,
        rules: str = "",
        alertmanager: Alertmanager | None = None,
        interval: str = "1s",
    ) -> None:
        super().__init__("prometheus", folder / "prometheus")
        self.config: dict[str, Any] = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "scrape_configs": list(scrape),
        }
        if rules:
            (self.folder / "rules.yml").write_text(rules)
            self.config["rule_files"] = ["rules.yml"]
        if alertmanager is not None:
            targets = [{"static_configs": [{"targets": [alertmanager.address]}]}]
            self.config["alerting"] = {"alertmanagers": targets}

    def __enter__(self) -> Prometheus:
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(self.config))
        self.start(
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address={self.address}",
        )
        return self

    def wait_until_at_work(self, timeout_s: float = 30) -> None:
        """Until every target was scraped and Alertmanager is known: 5 s after the start, for
        Prometheus hands its targets out at that interval."""
        deadline = time.monotonic() + timeout_s
        wanted = bool(self.config.get("alerting"))
        while not self.query("up == 1") or (
            wanted and not self.get("/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
        ):
            if time.monotonic() > deadline:
                raise RuntimeError("prometheus scrapes nothing")
            time.sleep(0.1)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of *expression*, now."""
        answer = self.get("/api/v1/query", query=expression)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or firing."""
        found: list[dict[str, Any]] = self.get("/api/v1/alerts")["data"]["alerts"]
        return found


def scrape_configs(shipped: Path, targets: Mapping[str, Sequence[str]], *, both: bool) -> list[Any]:
    """The shipped scrape configuration with *targets* by job.

    *both* keeps the rows that SGLang's own /metrics repeats.
    """
    found = []
    for job in yaml.safe_load(shipped.read_text())["scrape_configs"]:
        if job["job_name"] in targets:
            job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
            if both:
                job.pop("metric_relabel_configs", None)
            found.append(job)
    return found
