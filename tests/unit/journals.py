"""Journals as workers leave them: real files, real locks held by another process."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from hicache_obs import events as ev
from hicache_obs import runs, wire
from hicache_obs.events import Event
from hicache_obs.exporter.host import Host

KEEPER = """
import fcntl, os, sys
held = {}
for line in sys.stdin:
    what, path = line.split(None, 1)
    path = path.strip()
    if what == "hold":
        held[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        fcntl.lockf(held[path], fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    else:
        os.close(held.pop(path))
    print("done", flush=True)
"""


class Keeper:
    """A process that holds the locks of runs, as their workers would."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", KEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, what: str, path: Path) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {path}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Worker:
    """A run as its worker writes it. Times are the boot clock; the wall clock may lie."""

    directory: Path
    name: str
    keeper: Keeper
    started: ev.RunStarted
    starting: ev.WorkerStarting
    seq: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def path(self) -> Path:
        return runs.journal_path(self.directory, self.name)

    def write(self, *events: Event, time: float = 1000.0) -> Worker:
        with self.path.open("ab") as file:
            for event in events:
                file.write(wire.to_line(event, next(self.seq), time))
        return self

    def begin(self) -> Worker:
        self.keeper.do("hold", runs.alive_path(self.directory, self.name))
        return self.write(self.started, self.starting)

    def die(self) -> Worker:
        self.keeper.do("free", runs.alive_path(self.directory, self.name))
        return self


WORKER = ev.WorkerStarting(
    model_name="meta-llama/Llama-3.1-8B-Instruct",
    engine_type="unified",
    tp_rank="0",
    pp_rank="0",
    dp_rank="",
    server_port="30000",
    node_rank="0",
    nnodes="1",
    extra_labels={},
    sglang_version="0.5.14",
    mooncake_version="0.3.13.post1",
    torch_version="2.9.1",
    hicache=True,
    storage_backend="mooncake",
    mode="standalone",
)
POOL_REGISTERED = ev.PoolRegistered(
    outcome="success",
    api="register_mem_pool_host",
    mode="standalone",
    role="draft",
    pool="draft",
    buffers=1,
    bytes=1,
)
READY = ev.WorkerReady(duration_s=3.0)
POOL = {
    "pool_id": 1,
    "role": "draft",
    "pool": "draft",
    "pool_class": "MHATokenToKVPoolHost",
    "allocator": "default",
    "requested_allocator": "default",
    "layout": "page_first",
    "dtype": "bfloat16",
    "page_size": 64,
    "draft_layers": 1,
    "bytes": 1114112,
    "tokens": 4352,
    "held_bytes": 1114112,
    "held_tokens": 4352,
}
BUILT = ev.PoolBuilt(
    **POOL, outcome="success", reason="", code="", mode="standalone", expected=True
)  # type: ignore[arg-type]  # one table of fields for two events
MISMATCH = ev.MismatchSeen(
    role="draft",
    pool="draft",
    expected="mooncake",
    actual="default",
    reason="draft_differs_from_target",
    harmful=True,
)
ENTERED = ev.CallEntered(
    call=7, api="register_buffer", role="draft", pool="draft", bytes=1114112, since=999.0
)
REFUSED = ev.BufferRegistered(
    outcome="failure",
    error_type="RuntimeError",
    error="Failed to register buffer to Mooncake Store, error code: -1",
    call=7,
    api="register_buffer",
    mode="standalone",
    role="draft",
    pool="draft",
    allocator="default",
    bytes=1114112,
    address="0x1000",
    code="-1",
    cause="foreign_buffer",
    registered_bytes=0,
)
REGISTERED = replace(
    REFUSED,
    outcome="success",
    error_type="",
    error="",
    code="0",
    cause="",
    allocator="mooncake",
    registered_bytes=1114112,
)
FAILED = ev.WorkerFailed(
    outcome="failure",
    stage="registration",
    cause="foreign_buffer",
    error_type="RuntimeError",
    error="Failed to register buffer to Mooncake Store, error code: -1",
)
THE_BUG = (BUILT, MISMATCH, ENTERED, REFUSED, FAILED)
"""What SGLang 0.5.14 leaves when it dies with an EAGLE draft and a standalone client."""

Rows = dict[str, dict[frozenset[tuple[str, str]], float]]


def served(host: Host) -> Rows:
    """What the host's view serves: value by name and labels."""
    found: Rows = {}
    for metric, key, labels, value in host.view.rows:
        assert dict(key) == labels
        assert frozenset(key) not in found.setdefault(metric.name, {})
        found[metric.name][frozenset(key)] = value
    return found


def values(host: Host, name: str, /, **labels: str) -> list[float]:
    """The values of the series *name* that carry these labels."""
    return [
        value
        for found, value in served(host).get(name, {}).items()
        if labels.items() <= dict(found).items()
    ]


def starts(host: Host, **labels: str) -> list[float]:
    """The counts of starts that carry these labels, but for those of starts that still go on."""
    return [count for count in values(host, "hicache_worker_starts_total", **labels) if count]
