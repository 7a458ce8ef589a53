"""Ranges of memory: ``(address, bytes)``."""

from __future__ import annotations

from collections.abc import Iterable


def inside(address: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(start <= address < start + size for start, size in ranges)


def merge_ranges(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """``(address, bytes)`` ranges without those that lie inside another (views)."""
    merged: list[tuple[int, int]] = []
    for start, size in sorted(set(ranges), key=lambda r: (r[0], -r[1])):
        if size <= 0 or start == 0:
            continue
        if merged and start < merged[-1][0] + merged[-1][1]:
            last, length = merged[-1]
            merged[-1] = (last, max(length, start + size - last))
        else:
            merged.append((start, size))
    return tuple(merged)
