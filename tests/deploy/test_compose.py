"""``deploy/compose``: read by docker-compose; its configurations by Prometheus and Alertmanager."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench.monitoring import Alertmanager, Prometheus, Webhook
from exporter_process import Exporter, record

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "compose"
Program = Callable[[str, str], str]


def resolved(program: Program, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [program("docker-compose", "docker-compose"), "-f", HERE / "compose.yml", "config"]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def services(program: Program) -> dict[str, Any]:
    """The services as docker-compose understands them."""
    done = resolved(program, GRAFANA_PASSWORD="x")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return found


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Path on the host by path in the container; volumes that compose makes are left out."""
    parts = (each.split(":") for each in service["volumes"])
    return {inside: outside for outside, inside, _ in parts if outside.startswith("/")}


def test_without_a_password_it_says_which_is_missing(program: Program) -> None:
    done = resolved(program)
    assert done.returncode != 0
    assert "set GRAFANA_PASSWORD" in done.stderr


def test_what_is_mounted_is_there_and_nothing_is_open_to_others(services: dict[str, Any]) -> None:
    assert set(services) == {"exporter", "prometheus", "alertmanager", "grafana"}
    for name, service in services.items():
        for outside in mounts(service).values():
            assert outside == "/var/lib/hicache-obs" or Path(outside).exists(), outside
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    assert services["exporter"]["cap_drop"] == ["ALL"]
    assert services["exporter"]["read_only"] is True


def test_grafana_is_given_prometheus_and_both_dashboards(services: dict[str, Any]) -> None:
    there = mounts(services["grafana"])
    provisioning = "/etc/grafana/provisioning"
    source = yaml.safe_load(Path(there[f"{provisioning}/datasources/hicache-obs.yml"]).read_text())
    assert [one["url"] for one in source["datasources"]] == ["http://prometheus:9090"]
    boards = yaml.safe_load(Path(there[f"{provisioning}/dashboards/hicache-obs.yml"]).read_text())
    (folder,) = [one["options"]["path"] for one in boards["providers"]]
    shown = sorted(path.name for path in Path(there[folder]).glob("*.json"))
    assert shown == ["hicache-fleet.json", "hicache-server.json"]


def test_the_routes_are_those_that_are_shipped() -> None:
    shipped = yaml.safe_load((ROOT / "deploy/alertmanager/hicache-obs.routes.yml").read_text())
    own = yaml.safe_load((HERE / "alertmanager.yml").read_text())
    assert own["route"] == {"receiver": "nobody", **shipped["route"]}
    assert own["inhibit_rules"] == shipped["inhibit_rules"]


def test_a_failure_reaches_alertmanager(
    services: dict[str, Any], program: Program, tmp_path: Path
) -> None:
    """The real programs on the mounted files; only the names of the containers are replaced."""
    program("prometheus", "prometheus")
    program("prometheus-alertmanager", "prometheus-alertmanager")
    config = yaml.safe_load(
        Path(mounts(services["prometheus"])["/etc/prometheus/prometheus.yml"]).read_text()
    )
    rules = mounts(services["prometheus"])["/etc/prometheus/rules/hicache-obs.rules.yml"]
    assert config["rule_files"] == ["/etc/prometheus/rules/*.yml"]
    alerting = config["alerting"]["alertmanagers"]
    assert alerting == [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]
    routes = yaml.safe_load((HERE / "alertmanager.yml").read_text())
    journals = tmp_path / "journals"
    record(journals, {})
    exporter = Exporter(f"--journal.dir={journals}")
    jobs = yaml.safe_load(
        yaml.safe_dump(config["scrape_configs"]).replace(
            "exporter:9748", f"127.0.0.1:{exporter.port}"
        )
    )
    with (
        Webhook() as webhook,
        Alertmanager(tmp_path / "alertmanager", routes, webhook) as alertmanager,
        Prometheus(
            tmp_path / "prometheus",
            jobs,
            rules=Path(rules).read_text(),
            alertmanager=alertmanager,
        ),
    ):
        until = time.monotonic() + 90
        while "HiCacheRegistrationFailed" not in (told := _alerts(alertmanager)):
            assert time.monotonic() < until, told
            time.sleep(0.5)
    exporter.end()
    exporter.close()


def _alerts(alertmanager: Alertmanager) -> set[str]:
    return {one["labels"]["alertname"] for one in alertmanager.get("/api/v2/alerts")}
