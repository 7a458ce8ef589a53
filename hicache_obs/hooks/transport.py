"""SGLang's transfer engine: the protocol that it asks for, and the one that it gets."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hicache_obs import recorder
from hicache_obs.events import CallEntered, CallReturned, TransportChosen
from hicache_obs.hooks.around import Call

_API = "initialize"
INFINIBAND = Path("/sys/class/infiniband")
_NVLINK = {"MC_FORCE_MNNVL", "MC_INTRANODE_NVLINK"}
"""Settings by which a Mooncake that is built for NVLink takes it where there is no HCA."""


def initialize(call: Call) -> Iterator[None]:
    """``MooncakeTransferEngine.initialize(hostname, device_name)``: HiCache with Mooncake makes
    one a rank, before the host pools; an embedded store may share it.

    Raises RuntimeError in SGLang for any code but 0. Mooncake answers 0 as well where it uses
    TCP in place of the protocol that it was given.
    """
    rec = recorder.get()
    if not rec.worker.hicache and not rec.started:
        yield
        return
    number = rec.next_call()
    rec.emit(
        CallEntered(
            call=number,
            api=_API,
            role="none",
            pool="",
            bytes=0,
            since=rec.now(),
            mode="transfer_engine",
        )
    )
    yield
    rec.emit(CallReturned(call=number, api=_API, role="none", pool="", **call.outcome))
    if call.error is None:
        requested = _requested(call)
        devices = call.argument(2, "device_name") or ""
        rec.emit(TransportChosen(requested=requested, actual=used(requested, devices, os.environ)))


def _requested(call: Call) -> str:
    """The protocol that SGLang's wrapper gave to Mooncake, read where it reads it."""
    function = inspect.unwrap(call.original)
    envs = function.__globals__["envs"]
    if envs.ENABLE_ASCEND_TRANSFER_WITH_MOONCAKE.get():
        return "ascend"
    # 0.5.11 and 0.5.12 do not read it: theirs is always "rdma".
    reads = "MOONCAKE_PROTOCOL" in function.__code__.co_names
    return str(envs.MOONCAKE_PROTOCOL.get()) if reads else "rdma"


def used(
    requested: str, devices: str, environ: Mapping[str, str], infiniband: Path = INFINIBAND
) -> str:
    """The protocol of a transfer engine that was initialized without an error.

    ``tcp`` where it can be no other (mooncake transfer_engine_impl.cpp, ``init``, 0.3.13.post1):
    MC_FORCE_TCP is set, to whatever; or RDMA was asked for and no HCA is there. Mooncake takes
    none without an entry in /sys/class/infiniband, and of those only *devices*, comma-separated,
    if any are named (topology.cpp); it does not look at the protocol's name.
    """
    if "MC_FORCE_TCP" in environ:
        return "tcp"
    if requested != "rdma" or _NVLINK & environ.keys():
        return requested
    try:
        there = set(os.listdir(infiniband))
    except FileNotFoundError:
        there = set()
    except OSError:
        return requested
    named = {name.strip() for name in devices.split(",")} - {""}
    return requested if there & (named or there) else "tcp"
