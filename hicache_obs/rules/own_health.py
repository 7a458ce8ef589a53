"""Alerts on hicache-obs itself: what makes the others blind."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hicache_obs import durations
from hicache_obs.rules.alert import WARNING, Alert
from hicache_obs.rules.templates import EXPORTER, LIVE, MODEL, affected, by, either, listed
from hicache_obs.rules.thresholds import Thresholds

_NO = "No."
_A_TICKET = ', where!~"extra_label|draft_builder"'
"""An extra label that clashes is renamed at each start, which is no fault; of the draft builder
HiCacheDraftFixMissing tells."""


def own_health(limits: Thresholds, job: str) -> Iterable[Alert]:
    yield _hook_missing(limits)
    yield _errors(limits)
    yield _skew(limits)
    yield _exporter_absent(limits, job)
    yield _unseen(limits)


def _hook_missing(limits: Thresholds) -> Alert:
    labels = (*MODEL, "target")
    return Alert(
        name="HiCacheObsHookMissing",
        severity=WARNING,
        expr=f"max {by(labels)} (\n  hicache_obs_hook_missing\n) == 1",
        wait=limits.degraded_for,
        keep=limits.scrape_gap,
        summary="{{ $labels.model_name }}: hicache-obs could not hook {{ $labels.target }}",
        description="What {{ $labels.target }} does is not seen, so a failure in it is not told. "
        "This SGLang has moved or changed it, or another plug-in replaced it.",
        affected=affected("hicache_obs_hook_missing{HOST, LABELS} == 1", labels),
        traffic=_NO,
        first="Run `hicache-obs doctor` in the worker's image: it names the release and what is "
        "missing. Update hicache-obs, or look at the other plug-ins (SGLANG_PLUGINS).",
        worked="`hicache-obs doctor` says that all hook points are there.",
        dashboard="hicache-fleet",
    )


def _errors(limits: Thresholds) -> Alert:
    window = durations.text(limits.errors_window)
    labels = ("cluster", "namespace", "where")
    errors = _grown_once("hicache_obs_errors_total", window, "where", selector=_A_TICKET)
    lost = _grown_once("hicache_obs_journal_lost_events_total", window)
    broken = _grown('hicache_obs_journal_lines_total{result="broken"}', window)
    unreadable = 'hicache_obs_journal_directories{state="unreadable"} > 0'
    rows = "\nor\n".join(
        (
            errors,
            _named("journal_lost", lost),
            _named("journal_broken", broken),
            _named("journal_directory", unreadable),
        )
    )
    # The label `where` is made by the rows themselves, so no selector can match it.
    chosen = "vector(1)"
    for number, name in enumerate(labels, 1):
        chosen = f'label_replace({chosen}, "{name}", %[{number}]q, "", "")'
    one_line = rows.replace("\n", " ")
    return Alert(
        name="HiCacheObsErrors",
        severity=WARNING,
        expr=f"sum {by(labels)} (\n{rows}\n)",
        keep=limits.scrape_gap,
        summary="hicache-obs had faults of its own ({{ $labels.where }})",
        description='{{ printf "%.0f" $value }} fault(s) at {{ $labels.where }} within '
        f"{window}. SGLang is not touched by them, but what happened there may not be told.",
        affected=listed(
            "max by (instance, host, pod, server_port) "
            f"(({one_line}) and on ({', '.join(labels)}) {chosen})",
            labels,
            ("host", "pod", "server_port", "instance"),
            "{{ or .Labels.pod .Labels.host .Labels.instance }}"
            "{{ with .Labels.server_port }}:{{ . }}{{ end }}",
            "worker(s) or exporter(s)",
        ),
        traffic=_NO,
        first="Read the lines with `hicache-obs:` in the worker's log, or the exporter's own log "
        "and page; a full or unreadable state directory is the usual reason.",
        worked="`hicache_obs_errors_total` and `hicache_obs_journal_lost_events_total` stand "
        "still.",
        dashboard="hicache-server",
    )


def _grown_once(metric: str, window: str, *more: str, selector: str = "") -> str:
    """What *metric* of each rank counted within *window*, by the labels of the rank and *more*.

    The exporter's counts outlive workers, and what another address of it served is the same
    count: they are compared with what they were. Those of a worker begin anew with it."""
    served = "max without (job, instance)"
    exporter, live = (f"{metric}{{{source}" for source in (EXPORTER, LIVE))
    now = f"{served} ({exporter}{selector}}})"
    before = f"{served} (max_over_time({exporter}}}[6h] offset {window}))"
    nothing = f"0 * {served} ({exporter}}})"
    grown = f"(\n  {now} - ({before} or {nothing}) > 0\n)"
    return either(grown, _grown(f"{live}{selector}}}", window), *more)


def _grown(series: str, window: str) -> str:
    """What *series* counted within *window*; a counter that is born with a count has no
    increase, so one that was not there before counts as well."""
    before = series.replace(_A_TICKET, "")
    return (
        f"(\n"
        f"  increase({series}[{window}]) > 0\n"
        f"  or\n"
        f"  ({series} unless max_over_time({before}[6h] offset {window})) > 0\n"
        f")"
    )


def _named(where: str, rows: str) -> str:
    return f'label_replace(\n{rows},\n"where", "{where}", "", ""\n)'


def _skew(limits: Thresholds) -> Alert:
    labels = ("cluster", "namespace", "version")
    exporters = (
        "unless on (cluster, job, instance, version)\n"
        '  hicache_obs_build_info{host="", model_name=""} == 1'
    )
    return Alert(
        name="HiCacheObsVersionSkew",
        severity=WARNING,
        expr=f"count {by(labels)} (\n"
        f'  hicache_obs_build_info{{host!=""}} == 1\n  {exporters}\n) > 0',
        wait=limits.skew_for,
        keep=limits.scrape_gap,
        summary="{{ $value }} worker(s) run hicache-obs {{ $labels.version }}, and their exporter "
        "another version",
        description="The exporter reads what it knows of a journal of another version, and counts "
        'the rest in hicache_obs_journal_lines_total{result="skew"}.',
        affected=affected(f'hicache_obs_build_info{{host!="", LABELS}} == 1 {exporters}', labels),
        traffic=_NO,
        first="Bring exporter and images to one version, the exporter first.",
        worked="`hicache_obs_build_info` shows one version.",
        dashboard="hicache-fleet",
    )


def _exporter_absent(limits: Thresholds, job: str) -> Alert:
    up = f"up{{job={json.dumps(job, ensure_ascii=False)}}}"
    # Where one Prometheus has several clusters, one may lose the exporters that it had.
    had = f"max_over_time({up}[6h])"
    # Where `up` is not federated, rows of an exporter say that it is scraped.
    never = f"absent({up}) unless on () ({had} or hicache_obs_journal_directories)"
    return Alert(
        name="HiCacheObsExporterAbsent",
        severity=WARNING,
        expr=f"{up} == 0\nor\n{never}\nor\n"
        f"group by (cluster, job) ({had}) unless on (cluster) {up}",
        wait=limits.exporter_absent_for,
        summary="hicache-obs exporter {{ with $labels.instance }}{{ . }} is down{{ else }}is not "
        "scraped at all{{ end }}",
        description="A server that dies at its start on that host is not seen. Journals are kept: "
        "nothing is lost once the exporter is back.",
        affected="{{ with $labels.instance }}{{ . }}{{ else }}every host"
        "{{ with $labels.cluster }} of {{ . }}{{ end }}: Prometheus has no target of job "
        "{{ $labels.job }}{{ end }}",
        traffic="No. Failures on that host are not paged while it lasts.",
        first="Start the exporter, or see why it ended; `curl ADDRESS/-/ready` says what it lacks.",
        worked="`up` is 1 for the instance.",
        dashboard="hicache-fleet",
    )


def _unseen(limits: Thresholds) -> Alert:
    pod = "cluster, namespace, pod"
    return Alert(
        name="HiCacheObsWorkerUnseen",
        severity=WARNING,
        expr=f"count by (cluster, namespace) (\n"
        f"  group by ({pod}) (\n"
        '    {__name__=~"sglang[:_]hicache_host_total_tokens", pod!=""}\n'
        '    or hicache_worker_up{host="", pod!=""} == 1\n'
        "  )\n"
        f"  unless on ({pod})\n"
        '  hicache_worker_up{host!=""} == 1\n'
        ") > 0",
        wait=limits.unseen_for,
        keep=limits.scrape_gap,
        summary="{{ $labels.namespace }}: {{ $value }} SGLang pod(s) with HiCache are seen by no "
        "exporter",
        description="They are scraped themselves, but a start that dies before its first scrape "
        "would not be told: the plug-in is not in their image, their journal is not on the host, "
        "no exporter runs there, or the worker was not told POD_NAME and POD_NAMESPACE.",
        affected=listed(
            f"group by ({pod}) ("
            '{__name__=~"sglang[:_]hicache_host_total_tokens", pod!="", LABELS} '
            'or hicache_worker_up{host="", pod!="", LABELS} == 1) '
            f'unless on ({pod}) hicache_worker_up{{host!=""}} == 1',
            ("cluster", "namespace"),
            ("pod",),
            "{{ .Labels.pod }}",
            "pod(s)",
        ),
        traffic=_NO,
        first="Install hicache-obs into the image, mount the journal directory, and run an "
        "exporter on that host.",
        worked="`hicache_worker_up` has a row with the label `host` for each pod.",
        dashboard="hicache-fleet",
    )
