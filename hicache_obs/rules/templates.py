"""Pieces of PromQL and of Prometheus' templates that several alerts are made of."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_obs.causes import CAUSES

MODEL = ("cluster", "namespace", "model_name")
SERVER = (*MODEL, "host", "pod", "server_port")
RANK = (*SERVER, "tp_rank", "pp_rank", "dp_rank")

EXPORTER, LIVE = 'host!=""', 'host=""'
"""Matchers of the two sources."""
_SHOWN = 16
_SAME_RANK = "cluster, namespace, model_name, server_port, tp_rank, pp_rank, dp_rank"


def by(labels: Sequence[str]) -> str:
    return f"by ({', '.join(labels)})"


def once(series: str, *more: str) -> str:
    """*series* of each rank once, where the exporter and SGLang's own /metrics are both scraped.

    Args:
        series: an expression in whose selectors ``HOST`` stands for the matcher that tells the
            two sources apart: only the exporter writes ``host``.
        more: labels, beside those of the rank, by which rows of *series* differ.
    """
    return either(series.replace("HOST", EXPORTER), series.replace("HOST", LIVE), *more)


def either(exporter: str, live: str, *more: str) -> str:
    """As `once`, where the rows of each source have an expression of their own."""
    same = ", ".join((_SAME_RANK, *more))
    return f'{exporter}\nor on ({same})\nlabel_replace({live}, "host", "$1", "instance", "(.+)")'


def affected(series: str, labels: Sequence[str]) -> str:
    """Template text: how many ranks of how many servers, and which; of more ranks than a page
    can list, the first servers with the number of theirs.

    Args:
        series: as for `once`, with ``LABELS`` where the alert's own *labels* are matched;
            without ``HOST`` it is taken as it is.
    """
    rows = (once(series) if "HOST" in series else series).replace("\n", " ")
    ranks = f"max {by(RANK[3:])} ({rows})"
    servers = looked_up(f"count(count {by(SERVER[3:])} ({rows}))", labels, "{{ . | value }}", "no")
    server = "{{ or .Labels.pod .Labels.host }}{{ with .Labels.server_port }}:{{ . }}{{ end }}"
    rank = (
        f"{server} tp{{{{ .Labels.tp_rank }}}}"
        '{{ with .Labels.pp_rank }}{{ if ne . "0" }} pp{{ . }}{{ end }}{{ end }}'
        "{{ with .Labels.dp_rank }} dp{{ . }}{{ end }}"
    )
    query, values = _matching(_ordered(ranks, RANK[3:]), labels)
    of_each = _ordered(f"count {by(SERVER[3:])} ({ranks})", SERVER[3:])
    each, _ = _matching(of_each, labels)
    return (
        f"{{{{ with printf `{query}` {values} | query }}}}"
        f"{{{{ len . }}}} rank(s) of {servers} server(s): "
        f"{{{{ if le (len .) {_SHOWN} }}}}{_first(rank)}{{{{ else }}}}"
        f"{{{{ with printf `{each}` {values} | query }}}}"
        f"{_first(f'{server} ({{{{ . | value }}}})')}{{{{ end }}}}{{{{ end }}}}"
        "{{ else }}none any more{{ end }}"
    )


def listed(
    expression: str, labels: Sequence[str], names: Sequence[str], shown: str, what: str
) -> str:
    """Template text: how many results *expression* has, *what* they are, and the first of them.

    Args:
        expression: with ``LABELS`` where the alert's own *labels* are matched.
        names: labels of a result, by which it is ordered.
        shown: template of one result, which is ``.`` there.
    """
    query, values = _matching(_ordered(expression, names), labels)
    return (
        f"{{{{ with printf `{query}` {values} | query }}}}{{{{ len . }}}} {what}: "
        f"{_first(shown)}{{{{ else }}}}none any more{{{{ end }}}}"
    )


def _ordered(expression: str, names: Sequence[str]) -> str:
    """*expression* with the label by which `_first` orders its results: *names*, joined."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return f'label_join({expression}, "_order", "/", {quoted})'


def _first(shown: str) -> str:
    """Template text: the first of the results in ``.``, each as *shown*."""
    return (
        '{{ range $number, $one := sortByLabel "_order" . }}'
        f"{{{{ if lt $number {_SHOWN} }}}}{{{{ if $number }}}}, {{{{ end }}}}{shown}"
        f"{{{{ else if eq $number {_SHOWN} }}}} and more{{{{ end }}}}{{{{ end }}}}"
    )


def _matching(expression: str, labels: Sequence[str]) -> tuple[str, str]:
    """*expression* as a format with the alert's *labels* matched, and its values."""
    matchers = ", ".join(f"{name}=%[{number}]q" for number, name in enumerate(labels, 1))
    return expression.replace("LABELS", matchers), " ".join(f"$labels.{name}" for name in labels)


def looked_up(expression: str, labels: Sequence[str], shown: str, otherwise: str) -> str:
    """Template text: *shown* with the first result of *expression* as ``.``, else *otherwise*.

    Args:
        expression: with ``LABELS`` where the alert's own *labels* are matched.
    """
    query, values = _matching(expression, labels)
    return (
        f"{{{{ with printf `{query}` {values} | query }}}}"
        f"{{{{ with first . }}}}{shown}{{{{ end }}}}{{{{ else }}}}{otherwise}{{{{ end }}}}"
    )


def first_action(causes: Sequence[str]) -> str:
    """Template text: what to do first, by the label ``cause``, in the words of ``explain``."""
    return _chosen([(name, CAUSES[name].action) for name in causes], "read the exception's text")


def meaning(causes: Sequence[str]) -> str:
    """Template text: what the label ``cause`` means, in the words of ``explain``."""
    return _chosen([(name, CAUSES[name].meaning) for name in causes], "{{ $labels.cause }}")


def _chosen(texts: Sequence[tuple[str, str]], otherwise: str) -> str:
    (first, text), *others = texts
    lines = [f'{{{{ if eq $labels.cause "{first}" }}}}{text}']
    lines += [f'{{{{- else if eq $labels.cause "{name}" }}}}{text}' for name, text in others]
    return "\n".join([*lines, f"{{{{- else }}}}{otherwise}{{{{ end }}}}"])
