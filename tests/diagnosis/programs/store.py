"""A real MooncakeStore of a server with HiCache, and the calls that a scenario makes of it.

``SCENARIO_CODE`` is run with ``store``, ``register``, ``allocator``, ``anchor`` (1 MiB of the
store's allocator) and ``attempt(call, *arguments)``, which prints what the call answered or raised.
"""

import atexit
import json
import os
import re
import sys
import types

from sglang.srt.plugins import load_plugins

load_plugins()
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402 - after the plug-ins, as in a server
from sglang.srt.mem_cache.hicache_storage import PoolName  # noqa: E402, F401 - for the scenario
from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store as ms  # noqa: E402


class StorageConfig(types.SimpleNamespace):
    """What ``_generate_storage_config`` makes for one rank; a release's further fields are 0."""

    def __getattr__(self, name):
        return 1 if name.endswith("_size") else 0


config = StorageConfig(
    extra_config=json.loads(os.environ["SCENARIO_STORE"]),
    tp_size=1,
    tp_rank=0,
    pp_rank=0,
    pp_size=1,
    attn_cp_rank=0,
    attn_cp_size=1,
    is_mla_model=False,
    enable_storage_metrics=False,
    should_split_heads=False,
    tp_lcm_size=1,
)


def attempt(call, *arguments):
    """Make one call; print what came of it, without addresses."""
    try:
        said = repr(call(*arguments))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(re.sub("0x[0-9a-f]+", "0x", said), file=answers, flush=True)


allocator = ms.MooncakeHostTensorAllocator()
anchor = allocator.allocate((1 << 20,), torch.uint8, "cpu")
sizes = {"page_size": 64, "size": 1024, "size_per_token": 1024}  # the last two up to 0.5.12
pool = types.SimpleNamespace(allocator=allocator, kv_buffer=anchor, **sizes)
store = ms.MooncakeStore(config, pool)
register = store.register_buffer
exec(os.environ["SCENARIO_CODE"])
sys.stdout.flush()
atexit._run_exitfuncs()
os._exit(0)  # past the ten seconds that Mooncake takes to end
