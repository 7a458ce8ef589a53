"""Every way in which SGLang registers memory, other than MooncakeStore's own: one JSON line a case.

    registration_paths.py [--plugins] [--only CASE ...] [--fails]

Run it in the environment that ``harness.run_python`` makes. SGLang's classes, Mooncake's engine,
store and master are real, over TCP; buffers that are a GPU's on a server are CPU tensors. The
vendors' libraries are stand-ins (``vendors.py``). With ``--fails`` the vendors refuse, and the
linker and the embedding pool meet memory that Mooncake has already.

A line has ``case`` and ``absent`` (this release has no such path), or ``ok`` (nothing was raised,
which is no proof), ``returned``, ``error_type``, ``error``, ``class``, ``module`` and
``registered_bytes``: what really was registered, asked of Mooncake or counted by the vendor.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import logging
import os
import sys
import tempfile
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import vendors
from registration_bench import (
    MEMORY,
    AbsentError,
    Bench,
    Step,
    device_pool_of,
    environment,
    fitting,
    found,
    storage_config,
)
from registration_stores import STORES, store_step

_STORE = "sglang.srt.mem_cache.storage."


def engine_step(bench: Bench, which: str, method: str, memory: str) -> Step:
    """One call of a transfer engine; `memory` is new, known, overlap, null or empty."""
    engine = getattr(bench, which)
    start = 0 if memory == "null" else bench.memory()
    if memory in ("known", "overlap"):
        with vendors.answering(failure=False):
            engine.engine.register_memory(start, MEMORY)
    regions = [] if memory == "empty" else [(start, MEMORY // 2)]
    if memory == "overlap":
        regions = [(start + MEMORY // 2, MEMORY // 2)]
    if method == "batch_register" and memory in ("new", "overlap"):
        regions.insert(0, (bench.memory(), MEMORY))  # of two regions one may be refused
    pointers, sizes = [p for p, _ in regions], [s for _, s in regions]
    arguments: list[Any] = [pointers, sizes] if method.startswith("batch") else [*regions[0]]
    if "deregister" in method:
        arguments = arguments[:1]

    def registered() -> int:
        """Mooncake gives 0 for memory that it had, -3 for other."""
        return sum(s for p, s in regions if engine.engine.unregister_memory(p) == 0)

    call = partial(getattr(engine, method), *arguments)
    return Step(engine, call, registered if which == "engine" else None)


def linker_step(bench: Bench, module: str, name: str) -> Step:
    """A direct linker over the device pool of a DeepSeek V3.2 model; its constructor registers."""
    kind = found(_STORE + module, name)
    args, in_mooncake = bench.server_args, name == "MooncakeDirectLinker"
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    shape = {"kv_lora_rank": 64, "qk_rope_head_dim": 64, "kv_cache_dim": 128}
    pool = device_pool_of("DSATokenToKVPool", index_head_dim=128, **shape)
    buffers = [*pool.kv_buffer, *pool.index_k_with_scale_buffer]
    storages = [buffer.untyped_storage() for buffer in buffers]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    slots: Any = types.SimpleNamespace(get_kvcache=lambda: pool)
    params = CacheInitParams(False, None, slots, pool.page_size)
    more: dict[str, Any] = {"components": {ComponentType.FULL}}
    if in_mooncake:
        more["extra_config"] = bench.master.extra_config()
        if vendors.fails():
            store = found(_STORE + "mooncake_store.mooncake_store", "MooncakeStore")
            more["storage"] = store(storage_config(more["extra_config"]), None)
            more["storage"].register_buffer(buffers[-1])
            bench.stores.append(more["storage"])

    def call() -> None:
        linker = fitting(kind, args, params, **more)
        bench.kept.append(linker)
        if in_mooncake:
            bench.stores.append(linker.storage)

    def registered() -> int:
        native = bench.stores[-1].store
        ours = [(p, s) for p, s in sizes.items() if "storage" not in more or p != [*sizes][-1]]
        return sum(size for start, size in ours if native.unregister_buffer(start) == 0)

    return Step(kind, call, registered if in_mooncake else None)


def embedding_step(bench: Bench) -> Step:
    """The encoder server's cache: MooncakeEmbeddingStore registers its page-locked pools."""
    name, old = "embedding_cache_controller", "mooncake_store."
    try:
        controller = found(f"sglang.srt.mem_cache.{name}", "EmbeddingCacheController")
        kind = found(_STORE + old + "mooncake_embedding_store", "MooncakeEmbeddingStore")
    except AbsentError:  # up to 0.5.16
        controller = found(_STORE + old + name, "EmbeddingCacheController")
        kind = found(_STORE + old + name, "MooncakeEmbeddingStore")
    from sglang.srt.managers.schedule_batch import Modality

    bench.server_args  # noqa: B018 - publishes
    os.environ.update(MOONCAKE_MASTER=bench.master.master_address, MOONCAKE_PROTOCOL="tcp")
    os.environ.update(MOONCAKE_TE_META_DATA_SERVER="P2PHANDSHAKE", MOONCAKE_DEVICE="")
    os.environ.update(MOONCAKE_LOCAL_HOSTNAME="127.0.0.1", MOONCAKE_GLOBAL_SEGMENT_SIZE="67108864")
    given: dict[str, Any] = {"tp_rank": 0, "tp_size": 1, "max_pool_size_gb": 1 / 64}
    given["hidden_dims"] = {Modality.IMAGE: 64, Modality.AUDIO: 64}
    tensors: list[Any] = []

    def call() -> None:
        if "embedding_store" in inspect.signature(controller).parameters:
            factory = found("sglang.srt.mem_cache.embedding_store", "EmbeddingStoreFactory")
            given["embedding_store"] = factory.create_backend("mooncake")
        cache = fitting(controller, **given)
        pools = [getattr(cache, pool, None) for pool in ("vision_pool", "audio_pool")]
        tensors.extend(pool.tensor for pool in pools if pool is not None)
        tensors.extend(() if tensors else [cache.cpu_pool])
        bench.kept.append(cache)
        bench.stores.append(given.get("embedding_store") or cache.mooncake_store)
        if vendors.fails():
            bench.stores[-1].register_buffer(tensors[0])

    return Step(kind, call, lambda: sum(t.numel() * t.element_size() for t in tensors))


_ENGINE = [
    ("register", "new", ""),
    ("register", "overlap", "_overlap"),
    ("register", "null", "_null"),
    ("deregister", "known", ""),
    ("deregister", "new", "_unknown"),
    ("batch_register", "new", ""),
    ("batch_register", "overlap", "_overlap"),
    ("batch_register", "null", "_null"),
    ("batch_register", "empty", "_empty"),
    ("batch_deregister", "known", ""),
    ("batch_deregister", "new", "_unknown"),
]
_LINKERS = {
    "linker.mooncake": ("mooncake_store.mooncake_direct_linker", "MooncakeDirectLinker"),
    "linker.umbp": ("umbp.umbp_direct_linker", "UMBPDirectLinker"),
}
CASES: dict[str, Callable[[Bench], Step]] = {
    f"{which}.{method}{suffix}": partial(engine_step, which=which, method=method, memory=memory)
    for which in ("engine", "ascend")
    for method, memory, suffix in _ENGINE
    if which == "engine" or (memory in ("new", "known") and not suffix)
}
CASES |= {n: partial(linker_step, module=m, name=kind) for n, (m, kind) in _LINKERS.items()}
CASES["embedding"] = embedding_step
CASES |= {f"storage.{name}": partial(store_step, store=store) for name, store in STORES.items()}


def run(bench: Bench, name: str) -> dict[str, Any]:
    """Take one case; what became of it."""
    result: dict[str, Any] = {"case": name, "ok": False, "returned": None, "error_type": None}
    result |= {"error": None, "class": None, "module": None, "registered_bytes": 0}
    store = STORES.get(name.removeprefix("storage."))
    step = None
    with environment(store.env if store else {}):
        try:
            step = CASES[name](bench)
            if step.before is None:
                step.before = len(vendors.REGISTERED)
            result["returned"] = repr(step.call())
            result["ok"] = True
        except AbsentError:
            return {"case": name, "absent": True}
        except Exception as error:
            logging.getLogger("bench").debug("%s", name, exc_info=True)
            result |= {"error_type": type(error).__name__, "error": str(error)}
    if step is not None:
        kind = step.owner if inspect.isclass(step.owner) else type(step.owner)
        result |= {"class": kind.__name__, "module": kind.__module__}
        result["registered_bytes"] = step.registered_bytes()
    return result


def main() -> int:
    """Run the cases that the command line names, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plugins", action="store_true", help="load SGLang's plug-ins first")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", default=list(CASES))
    parser.add_argument("--fails", action="store_true", help="registrations are refused")
    options = parser.parse_args()

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what SGLang and the native libraries print is no answer
    logging.basicConfig(level=os.environ.get("BENCH_LOG_LEVEL", "WARNING"))
    os.environ.setdefault("MC_FORCE_TCP", "1")
    os.environ.setdefault("ASCEND_MF_STORE_URL", "tcp://127.0.0.1:1")
    vendors.install()
    if options.plugins:
        from sglang.srt.plugins import load_plugins

        load_plugins()
    vendors.pageable_tensors()
    with tempfile.TemporaryDirectory() as folder, vendors.answering(failure=options.fails):
        bench = Bench(Path(folder))
        try:
            for name in options.only:
                print(json.dumps(run(bench, name)), file=answers, flush=True)
        finally:
            bench.close()
    gc.freeze()  # as in server.py: a fast end of the interpreter
    return 0


if __name__ == "__main__":
    sys.exit(main())
