"""Every host pool class of the SGLang release on ``PYTHONPATH``, constructed in CPU memory.

    pool_zoo.py [--allocator mooncake] [--plugins] [--only NAME ...] [--no-destroy]

It prints one JSON line a case. What it says of memory it reads off the objects themselves, after
they were built: with ``--plugins`` a test compares that with what hicache-obs says.

A host pool gets the arguments that SGLang's own builders give (hybrid_pool_assembler.py,
hisparse_coordinator.py, hiradix_cache.py). What differs between releases is read from signatures.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import device_side
import pool_zoo_parts as parts
from pool_zoo_parts import LAYERS, PAGE_SIZE, AbsentError, Buffers, buffer_info, host_class

HOST_PAGES = 24


class Zoo:
    """The pools of one run, by case."""

    def __init__(self, allocator: str) -> None:
        self.allocator = allocator
        self.sizes = {"host_to_device_ratio": 2.0, "host_size": 0, "layout": "page_first_direct"}
        self.sizes["allocator_type"] = allocator
        self.pools: dict[str, Any] = {}

    @cached_property
    def indexed_mla(self) -> Any:
        """The device pool that cases ``mla`` and ``indexer`` mirror."""
        return parts.indexed_mla()

    def build(self, name: str) -> Any:
        """Construct the pool of a case; what SGLang raises goes through."""
        case = CASES[name]
        kind = host_class(*case.classes)
        missing = [need for need in case.needs if need not in self.pools]
        if missing:
            raise RuntimeError(f"needs the pool of {', '.join(missing)}")
        self.pools[name] = case.build(self, kind)
        return self.pools[name]


class Case(NamedTuple):
    """*classes*: the names of its class over the releases; *needs*: cases it stands on."""

    classes: tuple[str, ...]
    build: Callable[[Zoo, Any], Any]
    needs: tuple[str, ...] = ()


def _over(zoo: Zoo, kind: Any, device_pool: Any, drafts: tuple[Any, ...] = (), **more: Any) -> Any:
    """Construct a pool that mirrors a whole device pool.

    Up to 0.5.22 (Mamba: 0.5.21) the constructor takes the device pool, after that what the device
    pool says of its buffers, as ``build_kv_host_pool`` of hybrid_pool_assembler.py gives it.
    """
    described = "buffer_info" in inspect.signature(kind).parameters
    arguments = {
        **zoo.sizes,
        "page_size": getattr(device_pool, "page_size", 1),
        "device_capacity": device_pool.size,
        "device_capacity_tokens": device_pool.size,
        "start_layer": getattr(device_pool, "start_layer", 0),
        "end_layer": getattr(device_pool, "end_layer", 0),
        "target_layer_num": getattr(device_pool, "layer_num", 0),
        "draft_buffer_infos": tuple(buffer_info(draft) for draft in drafts if described),
        "mtp_draft_device_pools": drafts,
        **more,
    }
    return parts.call(kind, buffer_info(device_pool) if described else device_pool, **arguments)


def _beside(zoo: Zoo, kind: Any, source: Any, anchor: str, **more: Any) -> Any:
    """Construct a pool that takes its slots from the pool of case `anchor`."""
    host = zoo.pools[anchor]
    more.update(layout=host.layout, allocator_type=zoo.allocator)
    return parts.call(kind, source, host, **more)


def _mha(zoo: Zoo, kind: Any) -> Any:
    return _over(zoo, kind, device_side.device_pool("mha", LAYERS))


def _packed_draft(zoo: Zoo, kind: Any) -> Any:
    """A target with the layers of two one-layer MTP drafts in the same host pool."""
    wanted = inspect.signature(kind).parameters
    if not {"mtp_draft_device_pools", "draft_buffer_infos"} & set(wanted):
        raise AbsentError("mtp_draft_device_pools")
    drafts = tuple(device_side.device_pool("mha", 1) for _ in range(2))
    return _over(zoo, kind, device_side.device_pool("mha", LAYERS), drafts)


def _indexer(zoo: Zoo, kind: Any) -> Any:
    """From 0.5.22 the host pool is given the device pool's declaration of it."""
    declared = "decl" in inspect.signature(kind).parameters
    source = zoo.indexed_mla.host_pool_decls()[-1] if declared else zoo.indexed_mla
    return _beside(zoo, kind, source, "mla")


def _group(zoo: Zoo, kind: Any) -> Any:
    """The group of a DeepSeek V3.2 model: the pools of cases ``mla`` and ``indexer``."""
    from sglang.srt.mem_cache.hicache_storage import PoolName

    def entry(case: str, name: Any) -> Any:
        return host_class("PoolEntry")(
            name=name,
            host_pool=zoo.pools[case],
            device_pool=zoo.indexed_mla,
            layer_mapper=lambda layer: layer,
            is_primary_index_anchor=case == "mla",
        )

    return kind([entry("mla", PoolName.KV), entry("indexer", PoolName.INDEXER)])


def _dsv4_paged(zoo: Zoo, kind: Any) -> Any:
    """In layout layer_first, which allocates once a layer (and is the only one of 0.5.12)."""
    device_pool = parts.deepseek_v4("DeepSeekV4SingleKVPool")
    rows = {"device_buffers": device_pool.kv_buffer, "slot_page_size": device_pool.page_size}
    rows.update(item_bytes=device_pool.bytes_per_page_padded, num_host_pages=HOST_PAGES)
    return kind("deepseek_v4_c4", allocator_type=zoo.allocator, **rows)


def _dsv4_state(zoo: Zoo, kind: Any) -> Any:
    layers = [parts.deepseek_v4_state() for _ in range(3)]
    sizes = {"num_host_pages": HOST_PAGES, "swa_page_size": PAGE_SIZE}
    more = {"layout": "page_first_direct", "allocator_type": zoo.allocator}
    return parts.call(kind, "deepseek_v4_c4_state", layers, **sizes, **more)


def _dsv4_single(zoo: Zoo, kind: Any) -> Any:
    """It takes no allocator_type, like ``hisparse-mha``; its memory is torch's."""
    return kind(parts.deepseek_v4("HiSparseC4DevicePool"), host_size=2048, page_size=1)


def _mxfp8(zoo: Zoo, kind: Any) -> Any:
    with parts.transfer_kernels():
        return _over(zoo, kind, parts.mxfp8(), layout="page_first")


def _unified_full(zoo: Zoo, kind: Any) -> Any:
    """Both pools come from one call, as in SGLang; the other one is case ``unified-swa``."""
    pair = kind.build_hybrid_swa_pool_pair(
        device_pools=parts.unified(), page_size=PAGE_SIZE, **zoo.sizes
    )
    zoo.pools["unified-swa"] = pair[1]
    return pair[0]


def _nvfp4_index(zoo: Zoo, kind: Any) -> Any:
    pool = parts.nvfp4("MiniMaxM3Nvfp4IndexKPool")
    layers = {"start_layer": pool.start_layer, "end_layer": pool.end_layer}
    return _beside(zoo, kind, buffer_info(pool), "m3-main", **layers)


def _page_interleave(zoo: Zoo, kind: Any) -> Any:
    """One rank's stripe of two. The placement is real; a plain MHA pool stands for the sharded
    device pool, which has the same buffers and opens an NCCL communicator."""
    from sglang.srt.mem_cache.page_interleave import PageInterleavePlacement, PageShardSpec

    ranks = {"shard_rank": 0, "shard_size": 2, "page_size": PAGE_SIZE}
    spec = PageShardSpec(max_prefix_tokens=0, chunk_tokens=PAGE_SIZE, **ranks)
    return kind(_mha(zoo, host_class("MHATokenToKVPoolHost")), PageInterleavePlacement(spec))


_ASYMMETRIC, _MHA = ("AsymmetricMHATokenToKVPoolHost",), ("MHATokenToKVPoolHost",)
_UNIFIED, _QSA = ("UnifiedPageEnvelopeHostPool",), ("QSAIndexerPoolHost",)
_K_ONLY, _HISPARSE = ("MHATokenToKOnlyPoolHost",), ("HiSparseMHATokenToKVPoolHost",)
_M3_MAIN, _M3_INDEX = ("MiniMaxM3Nvfp4MainKVPoolHost",), ("MiniMaxM3Nvfp4IndexKPoolHost",)
CASES = {
    "mha": Case(_MHA, _mha),
    "mha-asymmetric": Case(
        _ASYMMETRIC, lambda z, kind: _over(z, kind, device_side.device_pool("asymmetric", LAYERS))
    ),
    "packed-draft": Case(_MHA, _packed_draft),
    "mla": Case(("MLATokenToKVPoolHost",), lambda z, kind: _over(z, kind, z.indexed_mla)),
    "indexer": Case(("DSAIndexerPoolHost", "NSAIndexerPoolHost"), _indexer, ("mla",)),
    "group": Case(("HostPoolGroup",), _group, ("mla", "indexer")),
    "logical": Case(("LogicalHostPool",), lambda z, kind: kind(HOST_PAGES * PAGE_SIZE, PAGE_SIZE)),
    "mamba": Case(("MambaPoolHost",), lambda z, kind: _over(z, kind, parts.mamba())),
    "dsv4-paged": Case(("DeepSeekV4PagedHostPool",), _dsv4_paged),
    "dsv4-state": Case(("DeepSeekV4StateHostPool",), _dsv4_state),
    "dsv4-single": Case(("DeepSeekV4SingleKVPoolHost",), _dsv4_single),
    "k-only": Case(_K_ONLY, lambda z, kind: _beside(z, kind, parts.k_only(), "mha"), ("mha",)),
    "qsa": Case(_QSA, lambda z, kind: _beside(z, kind, parts.qsa(), "mha"), ("mha",)),
    "hisparse-mha": Case(_HISPARSE, lambda z, kind: _over(z, kind, parts.hisparse_mha())),
    "mxfp8": Case(("MHATokenToKVPoolMXFP8Host",), _mxfp8),
    "unified-full": Case(_UNIFIED, _unified_full),
    "unified-swa": Case(_UNIFIED, lambda z, kind: z.pools["unified-swa"], ("unified-full",)),
    "m3-main": Case(
        _M3_MAIN, lambda z, kind: _over(z, kind, parts.nvfp4("MiniMaxM3Nvfp4MainKVPool"))
    ),
    "m3-index": Case(_M3_INDEX, _nvfp4_index, ("m3-main",)),
    "page-interleave": Case(("PageInterleaveHostPool",), _page_interleave),
}


def main() -> int:
    """Build all, then destroy and print one by one; the exit code is 0 whatever SGLang raised."""
    options = _parse()
    if options.plugins:
        from sglang.srt.plugins import load_plugins

        load_plugins()
    locks = parts.PageLocks()
    zoo = Zoo(options.allocator)
    rows = [_build(zoo, case, locks) for case in _wanted(options.only)]
    _measure(zoo, rows)
    for row in rows:
        if options.destroy and row.get("ok"):
            _destroy(zoo.pools[row["case"]], row, locks)
        print(json.dumps(row), flush=True)
    gc.freeze()  # Python's last collections over SGLang's modules take seconds and free nothing
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pool_zoo.py", description=__doc__)
    parser.add_argument("--allocator", default="default", help="allocator_type of the pools")
    parser.add_argument("--plugins", action="store_true", help="load SGLang's plug-ins first")
    parser.add_argument("--only", nargs="+", choices=CASES, help="these, and what they stand on")
    parser.add_argument("--destroy", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def _wanted(only: list[str] | None) -> list[str]:
    needed = {*(only or CASES), *(need for case in only or () for need in CASES[case].needs)}
    return [case for case in CASES if case in needed]


def _build(zoo: Zoo, case: str, locks: parts.PageLocks) -> dict[str, Any]:
    before = set(locks.locked)
    try:
        pool = zoo.build(case)
    except AbsentError:
        return {"case": case, "absent": True}
    except Exception as error:
        return {"case": case, "ok": False, "error_type": type(error).__name__, "error": str(error)}
    kind = type(pool)
    pinned = sum(size for ptr, size in locks.locked.items() if ptr not in before)
    row = {"case": case, "class": kind.__name__, "module": kind.__module__, "ok": True}
    return {**row, "pinned": pinned}


def _measure(zoo: Zoo, rows: list[dict[str, Any]]) -> None:
    """Add what the pools hold. A storage is counted for the first pool that has it; the others
    say in *shares* whose it is, and in *bytes_reached* how much they see."""
    owners: dict[int, str] = {}
    for row in (row for row in rows if row.get("ok")):
        pool = zoo.pools[row["case"]]
        found = Buffers(pool)
        own = [ptr for ptr in found.sizes if ptr not in owners]
        allocator = getattr(pool, "allocator", None)
        row.update(
            bytes=sum(found.sizes[ptr] for ptr in own),
            buffers=len(own),
            buffer_attributes=found.attributes,
            bytes_reached=sum(found.sizes.values()),
            shares=sorted({owners[ptr] for ptr in found.sizes if ptr in owners}),
            allocator=None if allocator is None else type(allocator).__name__,
            size=pool.size,
            page_size=pool.page_size,
            layout=getattr(pool, "layout", None),
            layers=getattr(pool, "layer_num", None),
            target_layers=getattr(pool, "target_layer_num", None),
        )
        owners.update(dict.fromkeys(own, row["case"]))


def _destroy(pool: Any, row: dict[str, Any], locks: parts.PageLocks) -> None:
    """Destroy a pool; say what of its memory stays page-locked and what it still holds itself."""
    before = Buffers(pool).sizes
    row["destroyed"] = False
    if callable(getattr(pool, "destroy", None)):
        try:
            with parts.on_cuda():
                pool.destroy()
            row["destroyed"] = True
        except Exception as error:
            row.update(destroy_error_type=type(error).__name__, destroy_error=str(error))
    row["pinned_after"] = sum(locks.locked.get(ptr, 0) for ptr in before)
    row["bytes_after"] = sum(Buffers(pool).sizes.values())


if __name__ == "__main__":
    sys.exit(main())
