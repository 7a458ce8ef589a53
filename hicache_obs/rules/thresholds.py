"""Every number of the alert rules, with its unit, its default and the values that make sense."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hicache_obs import durations


class ThresholdError(ValueError):
    """A threshold that does not exist, or a value that it cannot have."""


def _duration(default: int, low: int, high: int, meaning: str) -> Any:
    """Whole seconds."""
    return field(default=default, metadata={"range": (low, high), "meaning": meaning, "unit": "s"})


def _count(default: int, low: int, high: int, meaning: str) -> Any:
    return field(default=default, metadata={"range": (low, high), "meaning": meaning, "unit": ""})


def _share(default: float, low: float, high: float, meaning: str) -> Any:
    metadata = {"range": (low, high), "meaning": meaning, "unit": " of 1"}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Thresholds:
    """Durations in seconds; a value out of range raises `ThresholdError`."""

    scrape_gap: int = _duration(
        300, 0, 3600, "a failure that is not scraped for this long still counts (keep_firing_for)"
    )
    unreachable_for: int = _duration(
        300, 0, 3600, "Mooncake may be unreachable for this long before anybody is paged"
    )
    not_registered_for: int = _duration(
        600, 60, 86400, "a live worker may lack a registration that it should have for this long"
    )
    degraded_for: int = _duration(
        300, 0, 86400, "a state that costs no traffic now may last this long"
    )
    call_hangs_after: int = _duration(
        300, 30, 86400, "a native call that has not come back for this long hangs"
    )
    crash_loop_starts: int = _count(3, 2, 100, "failed starts that make a crash loop")
    crash_loop_window: int = _duration(
        900,
        300,
        86400,
        "within which they are counted; longer where a start and the pause before it (5m at most "
        "in Kubernetes) take more than a third of it",
    )
    errors_window: int = _duration(900, 300, 86400, "within which own errors are looked for")
    skew_for: int = _duration(3600, 0, 604800, "plug-in and exporter may differ for this long")
    exporter_absent_for: int = _duration(300, 60, 86400, "an exporter may be away for this long")
    unseen_for: int = _duration(900, 60, 86400, "a pod may be without an exporter for this long")
    host_memory_ratio: float = _share(
        1.0, 0.1, 1.0, "share of a memory limit that the host pools under it may take together"
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            low, high = each.metadata["range"]
            value = getattr(self, each.name)
            if not low <= value <= high:
                unit = each.metadata["unit"]
                raise ThresholdError(
                    f"threshold {each.name}: {_shown(value, unit)} is not between "
                    f"{_shown(low, unit)} and {_shown(high, unit)}"
                )

    def changes(self) -> Iterator[str]:
        """What differs from the defaults, as `with_changes` takes it."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                yield f"{each.name}={_shown(value, each.metadata['unit'])}"

    def with_changes(self, changes: Iterable[str]) -> Thresholds:
        """These, but for *changes*, each ``NAME=VALUE``; a duration may be written ``5m``.

        Raises:
            ThresholdError: no such name, not a number or duration, or out of range.
        """
        known = {each.name: each for each in fields(self)}
        values: dict[str, float] = {}
        for change in changes:
            name, equals, text = change.partition("=")
            if not equals or name not in known:
                names = ", ".join(known)
                raise ThresholdError(f"threshold {change!r}: give NAME=VALUE, with one of {names}")
            values[name] = _parsed(name, text, known[name].metadata["unit"])
        return replace(self, **values)  # type: ignore[arg-type]  # int or float by _parsed


def _shown(value: Any, unit: str) -> str:
    """*value* as `_parsed` takes it."""
    return durations.text(value) if unit == "s" else f"{value:g}"


def _parsed(name: str, text: str, unit: str) -> float:
    if unit == "s":
        duration_s = durations.seconds(text)
        if duration_s is None:
            raise ThresholdError(f"threshold {name}: {text!r} is no duration such as 30s, 5m or 1h")
        return duration_s
    kind, convert = ("whole number", int) if not unit else ("number", float)
    try:
        return convert(text)
    except ValueError:
        raise ThresholdError(f"threshold {name}: {text!r} is no {kind}") from None
