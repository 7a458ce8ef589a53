"""Alerts on what several starts, or several ranks, do together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hicache_obs import durations
from hicache_obs.rules.alert import CRITICAL, WARNING, Alert
from hicache_obs.rules.recording import FAILED_STARTS
from hicache_obs.rules.templates import MODEL, SERVER, affected, by, listed, looked_up
from hicache_obs.rules.thresholds import Thresholds


def capacity(limits: Thresholds) -> Iterable[Alert]:
    yield _crash_loop(limits)
    yield _overcommitted(limits)


def _crash_loop(limits: Thresholds) -> Alert:
    """Starts are counted from the smallest count in the window: the exporter writes a 0 when a
    start begins, and a scrape gap can then only hide a start, never invent one."""
    window = durations.text(limits.crash_loop_window)
    server = ", ".join(SERVER)
    starts = f"{FAILED_STARTS} - min_over_time({FAILED_STARTS}[{window}])"
    failures = (
        'hicache_failure_active{host!="", LABELS} == 1 '
        f"and on ({server}) {starts} >= {limits.crash_loop_starts}"
    )
    return Alert(
        name="HiCacheCrashLoop",
        severity=CRITICAL,
        expr=f"max {by(MODEL)} (\n"
        f"  {starts}\n"
        f"  and on ({server})\n"
        f"  hicache_failure_active == 1\n"
        f") >= {limits.crash_loop_starts}",
        keep=limits.scrape_gap,
        summary="{{ $labels.model_name }}: {{ $value }} starts of a server failed in HiCache "
        f"start-up within {window}",
        description="It fails again and again; one of the failures now is "
        + looked_up(
            f"topk(1, {failures})",
            MODEL,
            "stage {{ .Labels.stage }}, role {{ .Labels.role }}, pool {{ .Labels.pool }}, "
            "allocator {{ .Labels.allocator }}, code {{ .Labels.code }}, cause "
            "{{ .Labels.cause }}",
            "not known any more",
        )
        + ".",
        affected=affected(failures, MODEL),
        traffic="Yes, by the servers named in `affected`: they never come up. Restarting them "
        "again changes nothing.",
        first="Stop the restarts (scale to 0, or stop the unit), and read the first failure: "
        "`hicache-obs status`.",
        worked="A start gets past HiCache start-up: `hicache_worker_starts_total` counts a "
        "success, and the page resolves.",
        dashboard="hicache-fleet",
    )


_LIMITS = (
    ("cgroup", ', pod!=""', ("cluster", "namespace", "host", "pod")),
    ("cgroup", ', pod=""', ("cluster", "namespace", "host", "pod", "server_port")),
    ("psutil", ', pod!=""', ("cluster", "instance")),
    ("psutil", ', pod=""', ("cluster", "host")),
)
"""Each kind of limit: its source, whose it is, and the labels that the pools under it share.

Without a pod, each server of a host is taken to have a memory cgroup of its own. The memory of the
host itself is that of its pods together: one exporter serves them all.
"""


def _overcommitted(limits: Thresholds) -> Alert:
    size = _by_limit(
        lambda labels: looked_up(
            'max(hicache_host_limit_bytes{host!="", LABELS})',
            (*labels, "source"),
            "{{ . | value | humanize1024 }}B",
            "size not known",
        )
    )
    return Alert(
        name="HiCacheHostMemoryOvercommitted",
        severity=WARNING,
        expr=_sums(limits.host_memory_ratio),
        wait=limits.degraded_for,
        keep=limits.scrape_gap,
        summary="{{ or $labels.host $labels.instance }}"
        "{{ with $labels.server_port }}:{{ . }}{{ end }}"
        "{{ with $labels.pod }} ({{ . }}){{ end }}: the host pools take "
        "{{ $value | humanizePercentage }} of a memory limit",
        description="The host pools of all ranks, target and draft, under the "
        '{{ if eq $labels.source "cgroup" }}memory limit of their container'
        f"{{{{ else }}}}memory of their host{{{{ end }}}} ({size}) hold "
        "{{ $value | humanizePercentage }} of it. SGLang checks each rank alone; the kernel ends "
        "one when the pages are touched.",
        affected=_by_limit(
            lambda labels: listed(
                "max by (namespace, pod, host, server_port, tp_rank, role, pool) "
                '(hicache_host_pool_bytes{host!="", LABELS})',
                labels,
                ("pod", "server_port", "tp_rank", "role", "pool"),
                "{{ with .Labels.pod }}{{ . }}{{ end }}:{{ .Labels.server_port }} "
                "tp{{ .Labels.tp_rank }} {{ .Labels.role }}/{{ .Labels.pool }} "
                "{{ . | value | humanize1024 }}B",
                "host pool(s) on {{ or $labels.host $labels.instance }}",
            )
        ),
        traffic="Not yet. A rank may be killed when its pool fills.",
        first="Lower --hicache-size (or --hicache-ratio) of the servers on that host at their "
        "next restart, or raise the limit.",
        worked="The host panel of the server dashboard shows the sum below the limit.",
        dashboard="hicache-server",
    )


def _by_limit(text: Callable[[Sequence[str]], str]) -> str:
    """Template text that *text* makes of the labels, for the kind of limit that the alert is of."""
    pod, server, node, host = (text(labels) for _, _, labels in _LIMITS)
    return (
        f"{{{{ if $labels.instance }}}}{node}"
        f'{{{{ else if eq $labels.source "psutil" }}}}{host}'
        f"{{{{ else if $labels.pod }}}}{pod}{{{{ else }}}}{server}{{{{ end }}}}"
    )


_SOURCE = "job, instance"
"""A directory may have two exporters, and a new address of one is there beside the old."""


def _sums(share: float) -> str:
    """Each limit against the pools under it. Only the exporter writes ``host``, and only there
    a rank counts once."""
    return "\nor\n".join(
        f"sum {by(labels)} (\n"
        f"  max without ({_SOURCE if 'instance' not in labels else 'job'}) "
        f'(hicache_host_pool_bytes{{host!=""{whose}}})\n)\n'
        f"  / on ({', '.join(labels)}) group_right ()\n"
        f"max {by((*labels, 'source'))} "
        f'(hicache_host_limit_bytes{{source="{source}", host!=""{whose}}})\n'
        f"  > {share:g}"
        for source, whose, labels in _LIMITS
    )
