"""The shipped Alertmanager files, by amtool and amlint: valid, routed, inhibited, and alike."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hicache_obs.rules import alerts
from hicache_obs.rules.alert import CRITICAL

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "alertmanager"
RULES = ROOT / "deploy" / "prometheus" / "hicache-obs.rules.yml"
FRAGMENT, DEMO, OPERATOR = (
    DEPLOY / name for name in ("hicache-obs.routes.yml", "demo.yml", "alertmanagerconfig.yaml")
)
SITE = """
route: {receiver: everything-else, routes: [{matchers: ['team="web"'], receiver: everything-else}]}
receivers: [{name: everything-else, webhook_configs: [{url: 'http://127.0.0.1:1/'}]}]
inhibit_rules: [{source_matchers: [a="b"], target_matchers: [c="d"], equal: [e]}]
"""
WAITS = {"group_wait", "group_interval", "repeat_interval"}
MODEL = {"cluster": "c", "namespace": "n", "model_name": "m"}


def merged() -> dict[str, Any]:
    """The fragment in the configuration of a site, as its comment says."""
    site, fragment = yaml.safe_load(SITE), yaml.safe_load(FRAGMENT.read_text())
    site["route"]["routes"] = fragment["route"]["routes"] + site["route"]["routes"]
    for name in ("receivers", "inhibit_rules"):
        site[name] += fragment[name]
    return dict(site)


@pytest.fixture(params=["fragment", "demo"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A whole configuration."""
    if request.param == "demo":
        return DEMO
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(merged()))
    return path


@pytest.fixture
def amtool(program: Callable[[str, str], str]) -> str:
    """The real amtool."""
    return program("amtool", "prometheus-alertmanager")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    parts = [str(part) for part in command]
    return subprocess.run(parts, capture_output=True, text=True, check=False)


def amlint(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run(Path(sys.executable).with_name("amlint"), *arguments)


def test_amtool_takes_it(amtool: str, config: Path) -> None:
    done = run(amtool, "check-config", config)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_each_alert_reaches_its_receiver(amtool: str, config: Path, alert: Any) -> None:
    receiver = "hicache-pager" if alert.severity == CRITICAL else "hicache-tickets"
    labels = [f"alertname={alert.name}", f"severity={alert.severity}", "namespace=n"]
    arguments = (f"--config.file={config}", f"--verify.receivers={receiver}")
    done = run(amtool, "config", "routes", "test", *arguments, *labels)
    assert done.returncode == 0, done.stdout + done.stderr


def test_other_alerts_keep_their_route(amtool: str, config: Path) -> None:
    rest = "everything-else" if config != DEMO else "nobody"
    arguments = (f"--config.file={config}", f"--verify.receivers={rest}")
    labels = ("alertname=NodeDown", "severity=critical")
    done = run(amtool, "config", "routes", "test", *arguments, *labels)
    assert done.returncode == 0, done.stdout + done.stderr


def test_amlint_finds_nothing_wrong(config: Path) -> None:
    done = amlint("check", "--strict", "--format=json", f"--rules={RULES}", config)
    found = [one for one in json.loads(done.stdout or "[]") if one["level"] != "info"]
    assert (done.returncode, found) == (0, [])


@pytest.mark.parametrize("strategy", ["None", "OnNamespace"])
def test_amlint_finds_nothing_wrong_for_the_operator(strategy: str) -> None:
    done = amlint("check", "--strict", f"--matcher-strategy={strategy}", OPERATOR)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(name: str, **more: str) -> dict[str, str]:
    severity = next(alert.severity for alert in alerts() if alert.name == name)
    return {"alertname": name, "severity": severity, **MODEL, **more}


DRAFT = {"role": "draft", "pool": "draft"}
FOLLOWS = {
    "mismatch after its refused registration": (
        firing("HiCacheRegistrationFailed", cause="foreign_buffer", **DRAFT),
        firing("HiCacheAllocatorMismatch", **DRAFT),
    ),
    "registration with a store that was not set up": (
        firing("HiCacheStoreSetupFailed", cause="bad_config"),
        firing("HiCacheRegistrationFailed", cause="not_initialized", **DRAFT),
    ),
    "registration with a store that cannot be reached": (
        firing("HiCacheMooncakeUnreachable", cause="client_unreachable"),
        firing("HiCacheRegistrationFailed", cause="not_initialized", **DRAFT),
    ),
    **{
        f"crash loop after {name}": (firing(name, **DRAFT), firing("HiCacheCrashLoop"))
        for name in (
            *("HiCacheRegistrationFailed", "HiCacheHostPoolAllocationFailed"),
            *("HiCachePinningFailed", "HiCacheStoreSetupFailed", "HiCacheMooncakeUnreachable"),
        )
    },
    "pools of the ranks that a failure left": (
        firing("HiCacheRegistrationFailed", **DRAFT),
        firing("HiCachePoolNotRegistered", **DRAFT),
    ),
    "a fallback that is a mismatch": (
        firing("HiCacheAllocatorMismatch", **DRAFT),
        firing("HiCacheAllocatorFallback", **DRAFT),
    ),
    "the fix that is off, with the mismatch of it": (
        firing("HiCacheAllocatorMismatch", **DRAFT),
        firing("HiCacheDraftFixMissing"),
    ),
}


def is_muted(config: Path, source: dict[str, str], target: dict[str, str]) -> bool:
    given = ",".join(f"{name}={value}" for name, value in source.items())
    labels = [f"{name}={value}" for name, value in target.items()]
    done = amlint("route", "--format=json", f"--firing={given}", config, *labels)
    assert done.returncode == 0, done.stdout + done.stderr
    return bool(json.loads(done.stdout)["inhibited_by"])


@pytest.mark.parametrize(("source", "target"), FOLLOWS.values(), ids=FOLLOWS)
def test_what_follows_from_a_paged_failure_is_inhibited(
    config: Path, source: dict[str, str], target: dict[str, str]
) -> None:
    assert is_muted(config, source, target)
    assert not is_muted(config, source | {"model_name": "another"}, target)
    assert not is_muted(config, target, source)


def test_an_unlike_failure_of_the_same_model_is_paged(config: Path) -> None:
    draft = firing("HiCacheRegistrationFailed", cause="foreign_buffer", **DRAFT)
    assert not is_muted(config, draft, draft | {"role": "target", "pool": "kv"})
    assert not is_muted(config, draft, firing("HiCacheAllocatorMismatch", role="target", pool="kv"))
    assert not is_muted(config, draft, firing("HiCacheObsExporterAbsent"))
    target = {"role": "target", "pool": "kv"}
    assert not is_muted(config, draft, firing("HiCachePoolNotRegistered", **target))
    assert not is_muted(config, draft, firing("HiCacheDraftFixMissing"))
    mismatch = firing("HiCacheAllocatorMismatch", **DRAFT)
    assert not is_muted(config, mismatch, firing("HiCacheAllocatorFallback", **target))


def shape(route: dict[str, Any], *, waits: bool) -> dict[str, Any]:
    left = {k: v for k, v in route.items() if k != "routes" and (waits or k not in WAITS)}
    return left | {"routes": [shape(one, waits=waits) for one in route.get("routes", [])]}


def test_the_demonstration_differs_in_waits_and_receivers_only() -> None:
    demo, fragment = (yaml.safe_load(path.read_text()) for path in (DEMO, FRAGMENT))
    assert demo["inhibit_rules"] == fragment["inhibit_rules"]
    routes = [shape(one["route"]["routes"][0], waits=False) for one in (demo, fragment)]
    assert routes[0] == routes[1]


_NAMES = {"groupBy": "group_by", "groupWait": "group_wait", "groupInterval": "group_interval"}
_NAMES |= {"repeatInterval": "repeat_interval", "sourceMatch": "source_matchers"}
_NAMES |= {"targetMatch": "target_matchers"}


def native(value: Any) -> Any:
    """A piece of an AlertmanagerConfig in Alertmanager's own words."""
    if isinstance(value, list):
        return [native(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "matchType" in value:
        return f'{value["name"]}{value["matchType"]}"{value["value"]}"'
    return {_NAMES.get(name, name): native(one) for name, one in value.items()}


def test_the_operator_gets_the_same_routes_and_inhibitions() -> None:
    spec, fragment = (
        yaml.safe_load(OPERATOR.read_text())["spec"],
        yaml.safe_load(FRAGMENT.read_text()),
    )
    assert native(spec["route"]) == fragment["route"]["routes"][0]
    assert native(spec["inhibitRules"]) == fragment["inhibit_rules"]
    assert [one["name"] for one in spec["receivers"]] == [
        one["name"] for one in fragment["receivers"]
    ]


def test_secrets_are_files_and_the_commented_receivers_are_valid(
    amtool: str, tmp_path: Path
) -> None:
    text = FRAGMENT.read_text()
    for secret in ("credentials:", "api_url:", "routing_key:", "service_key:", "password:"):
        assert secret not in text
    lines = [line.replace("  # ", "  ", 1) for line in text.splitlines()]
    fragment = yaml.safe_load("\n".join(line for line in lines if not _is_prose(line)))
    kinds = [sorted(set(one) - {"name"}) for one in fragment["receivers"]]
    assert kinds == [["pagerduty_configs", "webhook_configs"], ["slack_configs", "webhook_configs"]]
    path = tmp_path / "alertmanager.yml"
    path.write_text(
        yaml.safe_dump(
            merged() | {"receivers": [*fragment["receivers"], {"name": "everything-else"}]}
        )
    )
    done = run(amtool, "check-config", path)
    assert done.returncode == 0, done.stdout + done.stderr


def _is_prose(line: str) -> bool:
    return line.strip() in ("A webhook of your own:", "PagerDuty:", "Slack:")
