"""The user's own labels (``--extra-metric-labels``) beside ours."""

from __future__ import annotations

from collections.abc import Mapping

from hicache_obs.metrics import RESERVED_LABELS


def safe_extra_labels(extra: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """``--extra-metric-labels`` as we add them, and a sentence on each that was changed.

    A name that clashes becomes ``extra_<name>``: prometheus_client would silently drop one of
    two values under one name.
    """
    safe: dict[str, str] = {}
    problems = []
    for name, value in extra.items():
        if name in RESERVED_LABELS:
            free = f"extra_{name}"
            while free in RESERVED_LABELS or free in extra:
                free = f"extra_{free}"
            problems.append(f"--extra-metric-labels {name!r} becomes {free!r}")
            name = free  # noqa: PLW2901
        if not name.isascii() or not name.isidentifier() or name.startswith("__"):
            problems.append(f"--extra-metric-labels {name[:80]!r} is no label name")
            continue
        safe[name] = value
    return safe, problems
