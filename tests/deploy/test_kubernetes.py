"""``deploy/kubernetes``: rendered by kubectl, held against current schemas, and harmless to SGLang.

No cluster runs here. What does not need one is real: the schemas, the commands and users of the
containers (as processes with their users, groups and capabilities), Prometheus and its relabelling.
"""

from __future__ import annotations

import copy
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from bench.monitoring import Prometheus
from exporter_process import Exporter, record

Objects = list[dict[str, Any]]
Render = Callable[[Path], Objects]
Check = Callable[[Objects], list[str]]
ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "kubernetes"
UNIT = ROOT / "tests" / "unit"
RENDERED = ["base", "monitoring", "annotations", "example/host", "example/sidecar"]
VERSIONS = ("1.29", kubernetes_validate.latest_version())
"""The first release whose sidecars are on by default, and the newest."""
OPERATOR = "monitoring.coreos.com/"
GROUP = 9748

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may take other users' place")


def problems(objects: Objects, operator: Check) -> list[str]:
    found = operator([one for one in objects if one["apiVersion"].startswith(OPERATOR)])
    for one in objects:
        if one["apiVersion"].startswith(OPERATOR):
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(f"{version} {one['kind']}: {error.message}")
    return found


@pytest.mark.parametrize("folder", RENDERED)
def test_what_is_rendered_is_what_kubernetes_and_the_operator_take(
    folder: str, kustomize: Render, operator: Check
) -> None:
    objects = kustomize(HERE / folder)
    assert objects
    assert problems(objects, operator) == []


def test_the_alertmanager_config_is_taken(operator: Check) -> None:
    path = ROOT / "deploy" / "alertmanager" / "alertmanagerconfig.yaml"
    assert operator([yaml.safe_load(path.read_text())]) == []


@pytest.mark.parametrize(
    ("folder", "wrong", "told"),
    [
        (
            "base",
            ("automountServiceAccountToken: false", "automountToken: false"),
            "automountToken",
        ),
        ("base", ("periodSeconds: 20", "periodSeconds: often"), "often"),
        ("monitoring", ("honorLabels", "honorlabels"), "honorlabels is not in the schema"),
        ("monitoring", ("action: replace", "action: put"), "action must be equal to one"),
        ("monitoring", ("for: 5m", "for: 5 minutes"), "for must match"),
    ],
)
def test_a_mistake_is_named(
    folder: str, wrong: tuple[str, str], told: str, kustomize: Render, operator: Check
) -> None:
    text = yaml.safe_dump_all(kustomize(HERE / folder))
    assert wrong[0] in text
    mistaken = list(yaml.safe_load_all(text.replace(*wrong)))
    assert told in "\n".join(problems(mistaken, operator))


# What SGLang's own pod is left with


def pod_of(objects: Objects, kind: str = "StatefulSet") -> dict[str, Any]:
    (found,) = [one for one in objects if one["kind"] == kind]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("way", ["host", "sidecar"])
def test_sglangs_pod_is_as_before_but_for_what_is_added(way: str, kustomize: Render) -> None:
    (before,), (after,) = kustomize(HERE / "example/sglang"), kustomize(HERE / f"example/{way}")
    pod = after["spec"]["template"]["spec"]
    (sglang,) = pod["containers"]
    ours = {"POD_NAME", "POD_NAMESPACE", "NODE_NAME", "HICACHE_OBS_STATE_GROUP"}
    assert {one["name"] for one in sglang["env"]} >= ours
    # Taken away again, nothing is left of it: no probe, no security context, no token, no limit.
    sglang["env"] = [one for one in sglang["env"] if one["name"] not in ours]
    for holder, key in ((sglang, "volumeMounts"), (pod, "volumes")):
        holder[key] = [one for one in holder[key] if one["name"] != "hicache-obs"]
    pod.pop("initContainers", None)
    after["spec"]["template"]["metadata"]["labels"].pop("hicache-obs/exporter", None)
    assert after == before


def test_only_what_asks_for_it_is_patched(kustomize: Render, tmp_path: Path) -> None:
    """A router beside SGLang stays as it is, and a Deployment is patched like a StatefulSet."""
    (server,) = kustomize(HERE / "example/sglang")
    router, other = copy.deepcopy(server), copy.deepcopy(server)
    del router["metadata"]["labels"]
    router["metadata"]["name"] = "router"
    other["kind"] = "Deployment"
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([server, router, other]))
    component = os.path.relpath(HERE / "worker", tmp_path.resolve())
    own = {"resources": ["all.yaml"], "components": [component]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    made = {(one["kind"], one["metadata"]["name"]): one for one in kustomize(tmp_path)}
    assert made["StatefulSet", "router"] == router
    for kind in ("StatefulSet", "Deployment"):
        assert "hicache-obs" in str(made[kind, "sglang"]["spec"])


def ours(kustomize: Render) -> Iterator[tuple[str, dict[str, Any]]]:
    for folder, kind in (("base", "DaemonSet"), ("example/sidecar", "StatefulSet")):
        pod = pod_of(kustomize(HERE / folder), kind)
        for one in (*pod["containers"], *pod["initContainers"]):
            if one["name"] != "sglang":
                yield f"{folder} {one['name']}", one


def test_our_containers_take_no_more_than_they_need(kustomize: Render) -> None:
    seen = dict(ours(kustomize))
    assert set(seen) == {"base exporter", "base directory", "example/sidecar hicache-obs"}
    for name, one in seen.items():
        assert one["resources"]["requests"] == one["resources"]["limits"], name
        assert set(one["resources"]["limits"]) == {"cpu", "memory"}
        security = one["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["runAsGroup"] == GROUP
        # readiness would take SGLang out of its Service; a start-up probe would hold it back.
        assert not {"readinessProbe", "startupProbe", "lifecycle"} & set(one)
        if "exporter" in (one.get("args") or []):
            assert security["runAsNonRoot"] is True
            assert one["livenessProbe"]["httpGet"]["path"] == "/-/healthy"


def test_the_sidecar_is_a_native_one_and_no_volume_has_a_limit(kustomize: Render) -> None:
    pod = pod_of(kustomize(HERE / "example/sidecar"))
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert {"name": "hicache-obs", "emptyDir": {}} in pod["volumes"]
    assert "securityContext" not in pod


def test_the_daemonset_reaches_every_node(kustomize: Render) -> None:
    pod = pod_of(kustomize(HERE / "base"), "DaemonSet")
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert "nodeSelector" not in pod
    (there,) = [one["hostPath"] for one in pod["volumes"]]
    worker = pod_of(kustomize(HERE / "example/host"))
    (written,) = [one["hostPath"] for one in worker["volumes"] if one["name"] == "hicache-obs"]
    assert there == written


# What is monitored


def test_the_rules_and_dashboards_are_those_that_are_shipped(kustomize: Render) -> None:
    made = {(one["kind"], one["metadata"]["name"]): one for one in kustomize(HERE / "monitoring")}
    shipped = (ROOT / "deploy/prometheus/hicache-obs.rules.yml").read_text()
    assert made["PrometheusRule", "hicache-obs"]["spec"] == yaml.safe_load(shipped)
    for path in (ROOT / "dashboards" / "json").glob("*.json"):
        config = made["ConfigMap", path.stem]
        assert config["data"] == {path.name: path.read_text()}
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        # kubectl apply keeps a copy in an annotation, and those end at 256 KiB.
        assert len(json.dumps(config)) < 262_144


def test_the_release_label_is_on_what_the_operator_reads(kustomize: Render, tmp_path: Path) -> None:
    here = os.path.relpath(HERE, tmp_path.resolve())
    own = {"resources": [f"{here}/monitoring"], "components": [f"{here}/release-label"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    labelled = {
        one["kind"]: one["metadata"]["labels"].get("release") for one in kustomize(tmp_path)
    }
    assert labelled == {
        "PodMonitor": "kube-prometheus-stack",
        "PrometheusRule": "kube-prometheus-stack",
        "ConfigMap": None,
    }


def relabellings(monitor: dict[str, Any]) -> Objects:
    """Those of a PodMonitor as Prometheus has them, after what the operator puts before them."""
    before = [
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": f"ns/{monitor['metadata']['name']}"},
        {"target_label": "endpoint", "replacement": "hicache-obs"},
    ]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    own = [
        {re.sub("([A-Z])", lambda m: f"_{m[1].lower()}", key): value for key, value in one.items()}
        for one in endpoint["relabelings"]
    ]
    return before + own


def test_prometheus_gets_the_workers_labels_and_a_name_that_lasts(
    kustomize: Render, program: Callable[[str, str], str], tmp_path: Path
) -> None:
    """The real Prometheus, with targets as Kubernetes' discovery (not in Debian's) has them."""
    program("prometheus", "prometheus")
    journals = tmp_path / "journals"
    record(journals, {"POD_NAME": "sglang-0", "POD_NAMESPACE": "llm", "NODE_NAME": "gpu-node-7"})
    record(journals, {"NODE_NAME": "gpu-node-7"})
    one = Exporter(f"--journal.dir={journals}")
    meta = {
        "__meta_kubernetes_namespace": "hicache-obs",
        "__meta_kubernetes_pod_name": "hicache-obs-x7k2p",
        "__meta_kubernetes_pod_node_name": "gpu-node-7",
        "__meta_kubernetes_pod_container_name": "exporter",
        "__meta_kubernetes_pod_container_port_name": "hicache-obs",
        "__meta_kubernetes_pod_label_hicache_obs_exporter": "host",
        "__meta_kubernetes_pod_annotation_prometheus_io_scrape": "true",
        "__meta_kubernetes_pod_annotation_prometheus_io_path": "/metrics",
    }
    targets = tmp_path / "targets.json"
    targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{one.port}"], "labels": meta}]))
    found = {"file_sd_configs": [{"files": [str(targets)]}]}
    host, sidecar = (o for o in kustomize(HERE / "monitoring") if o["kind"] == "PodMonitor")
    annotated = yaml.safe_load((HERE / "annotations/scrape.yml").read_text())["scrape_configs"][0]
    assert annotated.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    seen = {}
    for name, how in {
        "host": {"relabel_configs": relabellings(host), "honor_labels": True},
        "sidecar": {"relabel_configs": relabellings(sidecar), "honor_labels": True},
        "annotations": annotated,
    }.items():
        job = {"job_name": name, **how, **found}
        with Prometheus(tmp_path / name, [job]) as prometheus:
            until = time.monotonic() + 30
            while len(rows := prometheus.query("hicache_failure_active == 1")) < 2:
                assert time.monotonic() < until, prometheus.query("up")
                time.sleep(0.2)
            (up,) = prometheus.query("up")
        seen[name] = up["metric"] | {"__name__": "up"}
        places = [
            tuple(row["metric"].get(label) for label in ("host", "namespace", "pod"))
            for row in rows
        ]
        # The worker that was not told its pod gets nobody else's.
        assert sorted(places, key=str) == [
            ("gpu-node-7", "llm", "sglang-0"),
            ("gpu-node-7", None, None),
        ], name
    one.end()
    one.close()
    up = {"__name__": "up", "job": "hicache-obs"}
    assert seen["host"] == seen["annotations"] == {**up, "instance": "gpu-node-7"}
    assert seen["sidecar"] == {**up, "instance": "hicache-obs/hicache-obs-x7k2p"}


# Users and groups, as processes


@root_only
def test_the_directory_gets_its_group_and_the_exporter_reads_and_cleans_up(
    kustomize: Render, open_dir: Path
) -> None:
    """The kubelet makes the directory root's; SGLang runs as root, the exporter does not."""
    pod = pod_of(kustomize(HERE / "base"), "DaemonSet")
    (prepare,), (exporter,) = pod["initContainers"], pod["containers"]
    journals = open_dir / "journals"
    journals.mkdir(mode=0o755)
    early = {"HICACHE_OBS_STATE_GROUP": str(GROUP)}
    record(journals, early)  # a worker may be there before the DaemonSet
    security = prepare["securityContext"]
    as_said = [
        *("setpriv", f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}"),
        *("--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
    ]
    command = [part.replace("/var/lib/hicache-obs", str(journals)) for part in prepare["command"]]
    subprocess.run([*as_said, *command], check=True)
    found = journals.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, GROUP, 0o2770)
    record(journals, early)
    user = exporter["securityContext"]
    code = "from hicache_obs.cli import main; main()"
    who = (str(user["runAsUser"]), str(user["runAsGroup"]), code)
    kind, *flags = (
        arg.replace("/var/lib/hicache-obs", str(journals)).replace(":9748", "127.0.0.1:0")
        for arg in exporter["args"]
    )
    assert kind == "exporter"
    python = [sys.executable, str(UNIT / "as_user.py"), *who]
    one = Exporter(*flags, "--retention.runs=1", python=python)
    one.wait_for(r'hicache_failure_active\{.*cause="foreign_buffer".*\} 1')
    until = time.monotonic() + 20
    while len(list(journals.glob("*.jsonl"))) > 1:
        assert time.monotonic() < until, one.log
        time.sleep(0.1)
    assert (journals / "checkpoint.json").exists()
    assert not [line for line in one.log if "level=warning" in line]
    one.end()
    one.close()
