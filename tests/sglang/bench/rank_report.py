"""What the real objects of one rank say, written as JSON for tests to read.

It looks at the objects themselves, found through the garbage collector, and never at a journal:
a test can so compare what hicache-obs tells with what is there.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import device_side


def write(path: Path, facts: dict[str, Any], error: BaseException | None) -> None:
    """Write the report of one rank in one step."""
    report = dict(
        facts,
        release=importlib.metadata.version("sglang"),
        mooncake=_version("mooncake-transfer-engine-non-cuda"),
        error=None if error is None else {"type": type(error).__name__, "text": str(error)},
        **_objects(),
    )
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(report, indent=1, default=str) + "\n")
    temporary.replace(path)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _objects() -> dict[str, Any]:
    pools, controllers = [], []
    for thing in _of_sglang():
        kind = type(thing)
        if kind.__name__.endswith("PoolHost") or kind.__name__.endswith("PoolMXFP8Host"):
            pools.append(_pool(thing))
        elif kind.__name__ in ("HiCacheController", "HybridCacheController"):
            controllers.append(thing)
    return {
        "pools": sorted(pools, key=lambda pool: pool["role"], reverse=True),
        "stores": stores(),
        "controllers": [_controller(thing) for thing in controllers],
    }


def stores() -> list[dict[str, Any]]:
    """The storage backends that stand: attached, or left to the garbage collector."""
    return [
        {
            "class": type(thing).__name__,
            "registered_pools": [str(name) for name in _registered(thing)],
        }
        for thing in _of_sglang()
        if any(base.__name__ == "HiCacheStorage" for base in type(thing).__mro__)
    ]


def _of_sglang() -> list[Any]:
    """The objects of SGLang's classes, and of those that stand in for them."""
    return [
        thing
        for thing in gc.get_objects()
        if str(type(thing).__module__).startswith(("sglang.srt.", "standins"))
    ]


def _pool(pool: Any) -> dict[str, Any]:
    layers = getattr(pool, "layer_num", None)
    buffer = getattr(pool, "kv_buffer", None)
    tensors = buffer if isinstance(buffer, (list, tuple)) else [buffer]
    return {
        # The bench gives target and draft different layer counts, so that this is no guess.
        "role": "draft" if layers == device_side.DRAFT_LAYERS else "target",
        "class": type(pool).__name__,
        "allocator": type(getattr(pool, "allocator", None)).__name__,
        "layers": layers,
        "tokens": getattr(pool, "size", None),
        "bytes": sum(t.numel() * t.element_size() for t in tensors if t is not None),
        "layout": getattr(pool, "layout", None),
        "pool_label": getattr(pool, "pool_label", None),
    }


def _registered(store: Any) -> list[Any]:
    registered = getattr(store, "registered_pools", None)
    return [] if registered is None else list(registered)


def _controller(controller: Any) -> dict[str, Any]:
    return {
        "class": type(controller).__name__,
        "enable_storage": getattr(controller, "enable_storage", None),
        "has_draft": getattr(controller, "has_draft", None),
        "storage_backend": type(getattr(controller, "storage_backend", None)).__name__,
    }
