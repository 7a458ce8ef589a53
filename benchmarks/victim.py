"""A worker whose registration is refused, or never comes back; the benchmarks kill it.

    python benchmarks/victim.py after|inside [MODEL PORT]

The real hook around a stand-in of Mooncake's refusal. It says "ready" when it may be killed.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hicache_obs import recorder
from hicache_obs.hooks.around import around


def native(_store: Any, _tensor: Any) -> None:
    if sys.argv[1] == "inside":
        print("ready", flush=True)
        time.sleep(60)
    raise RuntimeError("Failed to register buffer to Mooncake Store, error code: -1")


if sys.argv[2:]:
    found = recorder.get()
    found.worker = replace(found.worker, model_name=sys.argv[2], server_port=sys.argv[3])
tensor = SimpleNamespace(data_ptr=lambda: 4096, numel=lambda: 64, element_size=lambda: 1)
store = SimpleNamespace(config=SimpleNamespace(standalone_storage=True, client_server_address=""))
try:
    around("register_buffer")(native, store, tensor)
except RuntimeError:
    print("ready", flush=True)
time.sleep(60)
