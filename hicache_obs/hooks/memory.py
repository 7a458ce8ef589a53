"""Reading addresses and sizes of buffers: only ``data_ptr``, ``numel`` and ``element_size``."""

from __future__ import annotations

from typing import Any


def address_and_size(buffer: Any) -> tuple[int, int] | None:
    """``(address, bytes)`` of a tensor, None if it cannot tell."""
    try:
        return int(buffer.data_ptr()), int(buffer.numel()) * int(buffer.element_size())
    except Exception:  # noqa: BLE001 - an object of a shape we never saw
        return None


def pool_ranges(pool: Any) -> list[tuple[int, int]]:
    """``(address, bytes)`` of a pool's own buffers, by its attributes.

    ``kv_buffer`` is a tensor, a list of tensors or None; asymmetric pools have ``k_buffer`` and
    ``v_buffer`` (mem_cache/pool_host/mha.py).
    """
    found = []
    for name in ("kv_buffer", "k_buffer", "v_buffer"):
        value = vars_of(pool).get(name)
        for buffer in value if isinstance(value, (list, tuple)) else [value]:
            pair = address_and_size(buffer)
            if pair is not None:
                found.append(pair)
    return found


def vars_of(obj: Any) -> dict[str, Any]:
    """An object's own attributes, without running a property or ``__getattr__`` of it."""
    found = getattr(obj, "__dict__", None)
    return found if isinstance(found, dict) else {}


def requested_bytes(dims: Any, dtype: Any) -> int:
    """Bytes that ``allocate(dims, dtype)`` asks for, 0 if that cannot be told."""
    try:
        total = int(dtype.itemsize)
        for dim in dims:
            total *= int(dim)
    except Exception:  # noqa: BLE001 - an object of a shape we never saw
        return 0
    return total
