"""A host pool of SGLang's own class, with the allocator of a storage backend.

``SCENARIO_CODE`` is run first; it may set ``ratio``, the pool's size over that of the device pool
of 2 MiB. The last line of the output says what SGLang built or raised.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["SCENARIO_BENCH"])))
from sglang.srt.plugins import load_plugins

load_plugins()
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import pool_zoo  # noqa: E402 - after the plug-ins, as in a server
import pool_zoo_parts  # noqa: E402
import vendors  # noqa: E402

pool_zoo_parts.PageLocks()
vendors.pageable_tensors()
import device_side  # noqa: E402, F401

ratio = 2.0
exec(os.environ["SCENARIO_CODE"])
zoo = pool_zoo.Zoo(os.environ["SCENARIO_ALLOCATOR"])
zoo.sizes["host_to_device_ratio"] = ratio
try:
    pool = zoo.build("mha")
    said = f"built {type(pool.allocator).__name__} {pool.kv_buffer.nbytes}"
except Exception as error:
    said = f"raised {type(error).__name__}: {error}"
print(said, file=answers, flush=True)
