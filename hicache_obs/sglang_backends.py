"""SGLang's storage backends beside Mooncake: which of them register host memory, and where the
library's answer can be seen. Data only, read from mem_cache/storage/, 0.5.11 to 0.5.23."""

from __future__ import annotations

from typing import NamedTuple


class Vendor(NamedTuple):
    """The library's object in a store, and its method whose answer False SGLang does not raise
    on; "" where SGLang raises whenever the library refuses."""

    attribute: str = ""
    method: str = ""


REGISTERING = {
    "nixl": Vendor(),
    "simm": Vendor(),
    "npu_memcache": Vendor(),
    "tensorcast": Vendor(),
    "eic": Vendor("connection", "register_memory"),
    "mori": Vendor("client", "register_memory"),
}
"""Backends that register the memory of host pools. The others copy, or use files."""

_OTHERS = {
    *("mooncake", "file", "hf3fs", "aibrix", "shm", "sim", "seaweedfs", "dynamic"),
}


def backend_label(name: object) -> str:
    """A backend's name as a label: one of SGLang's (storage/backend_factory.py), else ``other``."""
    text = str(name) if name else ""
    return text if text in REGISTERING or text in _OTHERS or not text else "other"
