"""Be a worker of the hicache-obs on ``PYTHONPATH``: a start with the bug, and one event a kind.

``HICACHE_OBS_STATE_DIR`` is where; it lives until its standard input ends.
"""

import sys
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

import journals

from hicache_obs import config, recorder
from hicache_obs.events import KINDS

VALUES: dict[object, Any] = {str: "text", int: 4096, float: 1.5, bool: True}


def value(hint: Any) -> Any:
    if hint in VALUES:
        return VALUES[hint]
    inner = [value(arg) for arg in get_args(hint) if arg not in (Ellipsis, type(None))]
    if get_origin(hint) is dict:
        return {inner[0]: inner[1]}
    return tuple(inner) if get_origin(hint) is tuple else inner[0]


one = recorder.Recorder(config.load())
one.worker = journals.WORKER
for event in journals.THE_BUG:
    one.emit(event)
for name, kind in KINDS.items():
    if name not in ("run", "worker_starting", "worker_ready"):
        hints = get_type_hints(kind)
        given = {f.name: value(hints[f.name]) for f in fields(kind) if f.default is MISSING}
        if "outcome" in hints:
            given["outcome"] = "success"
        one.emit(kind(**given))
one.flush()
print("done", flush=True)
sys.stdin.read()
