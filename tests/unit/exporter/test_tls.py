"""Who may read the exporter: certificates of both sides, and a line where there are none."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from bench.monitoring import Prometheus
from exporter_process import Exporter

START = Callable[..., Exporter]
LONG_AGO, YESTERDAY = (dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=d) for d in (9, 1))
TOMORROW = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=1)
REFUSED = (ssl.SSLError, urllib.error.URLError, ConnectionError)


class Site:
    """An authority, the exporter's certificate, and one of each kind of client."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.authority = folder, trustme.CA()
        self.authority.cert_pem.write_to_path(self["ca"])
        self.issue("server", self.authority, "127.0.0.1")
        self.issue("right", self.authority, "prometheus@site")
        self.issue("wrong", trustme.CA(), "prometheus@site")
        past = {"not_before": LONG_AGO, "not_after": YESTERDAY}
        self.issue("expired", self.authority, "prometheus@site", **past)
        self.issue("too early", self.authority, "prometheus@site", not_before=TOMORROW)

    def issue(self, name: str, authority: trustme.CA, identity: str, **times: Any) -> None:
        made = authority.issue_cert(identity, **times)
        made.private_key_and_cert_chain_pem.write_to_path(self[name])

    def __getitem__(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    @property
    def flags(self) -> tuple[str, ...]:
        pem = self["server"]
        return f"--web.tls-cert={pem}", f"--web.tls-key={pem}", f"--web.tls-client-ca={self['ca']}"

    def client(self, name: str = "") -> ssl.SSLContext:
        """A client with the certificate of that name, or without one."""
        context = ssl.create_default_context(cafile=self["ca"])
        if name:
            context.load_cert_chain(self[name])
        return context


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "pki")


@pytest.fixture
def secured(exporter: START, site: Site, tmp_path: Path) -> Exporter:
    one = exporter(f"--journal.dir={tmp_path}", *site.flags)
    assert one.scheme == "https"
    return one


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ("", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("wrong", "CERTIFICATE_VERIFY_FAILED"),
        ("expired", "CERTIFICATE_VERIFY_FAILED"),
        ("too early", "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_client_without_the_right_certificate_is_refused(
    secured: Exporter, site: Site, client: str, told: str
) -> None:
    for _ in range(3):
        with pytest.raises(REFUSED):
            secured.get("/metrics", site.client(client))
    assert secured.get("/metrics", site.client("right"))[0] == 200
    (line,) = [line for line in secured.log if "refused" in line]
    assert f"127.0.0.1 was refused: {told}" in line
    assert not [line for line in secured.log if "Traceback" in line]


def test_a_client_that_speaks_no_tls_or_says_nothing_holds_up_nobody(
    secured: Exporter, site: Site
) -> None:
    with socket.create_connection(("127.0.0.1", secured.port)) as silent:
        with socket.create_connection(("127.0.0.1", secured.port), timeout=10) as plain:
            plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"HTTP/1.0 200" not in plain.recv(65536)
        assert secured.get("/-/healthy", site.client("right"))[0] == 200
        assert silent.fileno() > 0
    assert [line for line in secured.log if "HTTP_REQUEST" in line]


def test_a_client_that_goes_away_is_no_news(exporter: START, tmp_path: Path) -> None:
    one = exporter(f"--journal.dir={tmp_path}")
    before = len(one.log)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", one.port)) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            gone.sendall(b"GET /metrics")
    assert one.get("/metrics")[0] == 200
    assert one.log[before:] == []


def test_prometheus_with_each_certificate(
    secured: Exporter, site: Site, program: Callable[[str, str], str], tmp_path: Path
) -> None:
    """The real Prometheus, one job a kind of client; and one that does not know our authority."""
    program("prometheus", "prometheus")
    target = [{"targets": [f"127.0.0.1:{secured.port}"]}]
    own = {"cert_file": site["right"], "key_file": site["right"]}
    tls = {name: {"ca_file": site["ca"]} for name in ("right", "missing", "wrong", "expired")}
    for name in ("right", "wrong", "expired"):
        tls[name] |= {"cert_file": site[name], "key_file": site[name]}
    tls["stranger"] = own
    jobs = [
        {"job_name": name, "scheme": "https", "tls_config": how, "static_configs": target}
        for name, how in tls.items()
    ]
    with Prometheus(tmp_path / "prometheus", jobs) as prometheus:
        until = time.monotonic() + 30
        while len(up := _up(prometheus)) < len(tls):
            assert time.monotonic() < until, up
            time.sleep(0.2)
    assert up == {"right": 1, "missing": 0, "wrong": 0, "expired": 0, "stranger": 0}


def _up(prometheus: Prometheus) -> dict[str, int]:
    return {row["metric"]["job"]: int(row["value"][1]) for row in prometheus.query("up")}


def test_a_renewed_certificate_is_taken_without_a_restart(
    secured: Exporter, site: Site, tmp_path: Path
) -> None:
    """Certificates live for weeks, exporters for months."""
    assert secured.get("/-/healthy", site.client("right"))[0] == 200
    past = {"not_before": LONG_AGO, "not_after": YESTERDAY}
    site.issue("server", site.authority, "127.0.0.1", **past)
    with pytest.raises(urllib.error.URLError, match="certificate has expired"):
        secured.get("/-/healthy", site.client("right"))
    site.issue("server", site.authority, "127.0.0.1")
    assert secured.get("/-/healthy", site.client("right"))[0] == 200
    authority = trustme.CA()
    authority.cert_pem.write_to_path(site["ca"])
    site.issue("server", authority, "127.0.0.1")
    with pytest.raises(REFUSED):
        secured.get("/-/healthy", site.client("right"))
    site.issue("right", authority, "prometheus@site")
    assert secured.get("/-/healthy", site.client("right"))[0] == 200


@pytest.mark.parametrize("how", ["gone", "half written"])
def test_a_renewal_that_fails_leaves_the_certificate_before(
    secured: Exporter, site: Site, how: str, tmp_path: Path
) -> None:
    kept = shutil.copy(site["server"], tmp_path / "kept")
    if how == "gone":
        Path(site["server"]).unlink()
    else:
        Path(site["server"]).write_text("-----BEGIN CERTIFICATE-----\n")
    counted, until = 'hicache_obs_errors_total{where="exporter_tls"} 1.0', time.monotonic() + 10
    while counted not in secured.get("/metrics", site.client("right"))[1]:
        assert time.monotonic() < until
        time.sleep(0.1)
    (line,) = [line for line in secured.log if "the changed certificate is not used" in line]
    assert site["server"] in line
    shutil.copy(kept, site["server"])
    assert secured.get("/-/healthy", site.client("right"))[0] == 200


@pytest.mark.parametrize(
    ("bad", "text"),
    [("server", None), ("ca", None), ("server", "none"), ("ca", "none"), ("ca", "")],
    ids=["no certificate", "no authority", "bad certificate", "bad authority", "empty authority"],
)
def test_a_file_that_is_no_certificate_is_one_line_that_names_it(
    site: Site, bad: str, text: str | None, tmp_path: Path
) -> None:
    Path(site[bad]).unlink()
    if text is not None:
        Path(site[bad]).write_text(text)
    flags = (f"--journal.dir={tmp_path}", "--web.listen-address=127.0.0.1:0", *site.flags)
    done = subprocess.run(
        [sys.executable, "-m", "hicache_obs.cli", "exporter", *flags],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("hicache-obs exporter: cannot serve on 127.0.0.1:0: ")
    assert site[bad] in line


@pytest.mark.parametrize(
    ("address", "tls", "warned"),
    [
        ("127.0.0.1:0", False, False),
        ("localhost:0", False, False),
        ("0.0.0.0:0", False, True),
        (":0", False, True),
        ("0.0.0.0:0", True, False),
    ],
)
def test_a_line_where_others_read_without_tls(
    exporter: START, site: Site, address: str, tls: bool, warned: bool, tmp_path: Path
) -> None:
    flags = [f"--journal.dir={tmp_path}", f"--web.listen-address={address}", "--log.format=json"]
    one = exporter(*flags, *(site.flags if tls else ()))
    lines = [json.loads(line) for line in one.log]
    told = [line["msg"] for line in lines if line["level"] == "warning"]
    assert len(told) == warned
    if warned:
        where = "*" if address == ":0" else "0.0.0.0"
        assert told[0].startswith(f"whoever reaches {where}:{one.port} reads everything")
        assert "--web.tls-cert" in told[0]
