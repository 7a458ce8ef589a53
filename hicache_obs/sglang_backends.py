"""SGLang's storage backends beside Mooncake: which of them register host memory, and where the
library's answer can be seen. Data only, read from mem_cache/storage/, 0.5.11 to 0.5.23."""

from __future__ import annotations

from typing import NamedTuple


class Vendor(NamedTuple):
    """The library's object in a store, and its method that registers; "" where the store gives
    every pool to the library and raises whenever it refuses. *since*: the release from which it
    registers the target's pool; *side_pools*: that for other pools, "" if never. *zero_copy*: the
    store's attribute that is false where it registers a buffer to copy through, not the pool."""

    attribute: str = ""
    method: str = ""
    since: str = "0.5.11"
    side_pools: str = ""
    zero_copy: str = ""


REGISTERING = {
    "nixl": Vendor(
        "agent", "register_memory", since="0.5.13", side_pools="0.5.16", zero_copy="is_zero_copy"
    ),
    "simm": Vendor(),
    "npu_memcache": Vendor(since="0.5.20", side_pools="0.5.20"),
    "tensorcast": Vendor(since="0.5.21"),
    "eic": Vendor("connection", "register_memory"),
    "mori": Vendor("client", "register_memory", since="0.5.15", side_pools="0.5.18"),
}
"""Backends that register the memory of host pools. The others copy, or use files."""

_OTHERS = {
    *("mooncake", "file", "hf3fs", "aibrix", "shm", "sim", "seaweedfs", "dynamic"),
}


def backend_label(name: object) -> str:
    """A backend's name as a label: one of SGLang's (storage/backend_factory.py), else ``other``."""
    text = str(name) if name else ""
    return text if text in REGISTERING or text in _OTHERS or not text else "other"
