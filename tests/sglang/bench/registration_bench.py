"""What the cases of ``registration_paths.py`` stand on: SGLang published, its pools and engines."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import vendors
from mooncake_services import Mooncake, free_port

MEMORY = 1 << 20
PAGE_SIZE = 64


class AbsentError(Exception):
    """This release does not have the path."""


@dataclass
class Step:
    """The registering call of a case. `owner` is the object or class that it is made on."""

    owner: Any
    call: Callable[[], Any]
    registered: Callable[[], int] | None = None
    """How many bytes are registered after it; None: what the vendors have taken since `before`."""
    before: int | None = None

    def registered_bytes(self) -> int:
        """Return how many bytes this step has registered."""
        if self.registered is not None:
            return self.registered()
        return sum(size for _, size in vendors.REGISTERED[self.before :])


def found(module: str, name: str) -> Any:
    """Import what a case needs of SGLang, or raise `AbsentError`."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            raise AbsentError from error
        raise
    except AttributeError as error:
        raise AbsentError from error


def fitting(function: Any, *positional: Any, **available: Any) -> Any:
    """Call `function` with those of the named arguments that this release's signature has."""
    wanted = inspect.signature(function).parameters
    return function(*positional, **{k: v for k, v in available.items() if k in wanted})


class Bench:
    """What the cases share, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mooncake = Mooncake(folder, standalone=False)
        self.kept: list[Any] = []
        self.stores: list[Any] = []

    @cached_property
    def master(self) -> Mooncake:
        """The real ``mooncake_master``, started."""
        self.mooncake.start_master()
        return self.mooncake

    def close(self) -> None:
        """Close Mooncake's stores, then the master: without it each takes ten seconds to end."""
        for store in self.stores:
            store.store.close()
        self.mooncake.stop()

    @cached_property
    def server_args(self) -> Any:
        """SGLang's arguments, published as a scheduler process does, and its process groups."""
        import sglang.srt.server_args as module
        import standins
        from sglang.srt.distributed import parallel_state

        standins.page_locking()
        extra = self.mooncake.extra_config() | {"tensorcast": {"daemon_address": "127.0.0.1:1"}}
        args = module.ServerArgs(
            model_path=str(Path(__file__).with_name("tiny_model")),
            skip_tokenizer_init=True,
            load_format="dummy",
            device="cpu",
            attention_backend="torch_native",
            page_size=PAGE_SIZE,
            enable_hierarchical_cache=True,
            hicache_mem_layout=os.environ.get("BENCH_LAYOUT", "page_first_direct"),
            hicache_io_backend="direct",
            hicache_storage_backend_extra_config=json.dumps(extra),
        )
        with contextlib.suppress(AttributeError):  # up to 0.5.18, as ModelRunner.__init__ does
            module.set_global_server_args_for_scheduler(args)
        with contextlib.suppress(AbsentError):
            publish = found("sglang.srt.runtime_context", "publish")
            ranks = getattr(sys.modules[publish.__module__], "SpawnRanks", None)
            placed = {} if ranks is None else {"ranks": ranks(world_rank=0, gpu_id=0)}
            fitting(publish, args, role="scheduler", **placed)
        address = f"tcp://127.0.0.1:{free_port()}"
        one = {"world_size": 1, "rank": 0, "local_rank": 0, "backend": "gloo"}
        parallel_state.init_distributed_environment(distributed_init_method=address, **one)
        sizes = {"tensor_model_parallel_size": 1}  # from 0.5.21 they are in the context
        fitting(parallel_state.initialize_model_parallel, backend="gloo", **sizes)
        return args

    def memory(self) -> int:
        """Return the address of `MEMORY` bytes that stay."""
        import torch

        self.kept.append(torch.zeros(MEMORY, dtype=torch.uint8))
        address: int = self.kept[-1].data_ptr()
        return address

    def host_pool(self, allocator: str = "default", *, draft: bool = False) -> Any:
        """Build SGLang's MHA host pool, with its own builder where there is one (0.5.18+)."""
        args = self.server_args
        shape = {"head_num": 2, "head_dim": 64}
        device_pool = device_pool_of("MHATokenToKVPool", layers=1 if draft else 4, **shape)
        module = "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler"
        try:
            build = found(module, "build_kv_host_pool")
        except AbsentError:
            kind = found("sglang.srt.mem_cache.memory_pool_host", "MHATokenToKVPoolHost")
            layout = args.hicache_mem_layout
            return kind(device_pool, 2.0, 0, PAGE_SIZE, layout, allocator_type=allocator)
        assembler: Any = sys.modules[module]
        ask = getattr(
            assembler, "_get_allocator_type", None
        )  # 0.5.18+; before, an argument's value
        named = {"kv_pool": device_pool, "server_args": args, "use_mla": False}
        if ask is None:
            return fitting(build, page_size=PAGE_SIZE, **named)
        assembler._get_allocator_type = lambda *a: allocator
        try:
            return fitting(build, page_size=PAGE_SIZE, **named)
        finally:
            assembler._get_allocator_type = ask

    def prepare(self, backend: str, kind: Any) -> None:
        """Give a storage backend the folder, the file or the platform that it looks for."""
        module: Any = sys.modules[kind.__module__]
        config = self.folder / f"{backend}.config"
        if backend == "eic":
            module.TensorPoolSize = 4  # pages; 2048 are half a gigabyte
            config.write_text(f"{{remote_url: 'eic://127.0.0.1:1', eic_log_dir: {self.folder}}}")
        elif backend == "hf3fs":
            sizes = {"file_size": 1 << 24, "numjobs": 1, "entries": 1}
            prefix = str(self.folder / "hf3fs")
            config.write_text(json.dumps({"file_path_prefix": prefix, **sizes}))
        elif backend == "simm":  # it gets a list, and fails, where there is no RDMA device
            module.get_numa_nic_mapping = dict
        elif backend == "tensorcast":  # it insists on a CUDA platform
            package = kind.__module__.rpartition(".")[0]
            checks: Any = importlib.import_module(f"{package}.host_allocator")
            checks.validate_tensorcast_startup_configuration = lambda **_: None
        variables = {"eic": "REMOTE_EIC_YAML", "hf3fs": "SGLANG_HICACHE_HF3FS_CONFIG_PATH"}
        if backend in variables:
            os.environ[variables[backend]] = str(config)
        os.environ["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = str(self.folder / "nixl")
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(self.folder / "file")

    @cached_property
    def engine(self) -> Any:
        """SGLang's transfer engine on Mooncake's, over TCP with peer-to-peer metadata."""
        module = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
        return found(module, "MooncakeTransferEngine")("127.0.0.1", gpu_id=0)

    @cached_property
    def ascend(self) -> Any:
        """SGLang's transfer engine of a prefill server on an NPU."""
        mode = found("sglang.srt.disaggregation.utils", "DisaggregationMode")
        kind = found("sglang.srt.disaggregation.ascend.transfer_engine", "AscendTransferEngine")
        return kind("127.0.0.1", 0, mode.PREFILL)


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables in this block."""
    os.environ.update(values)
    yield
    for name in values:
        del os.environ[name]


def device_pool_of(name: str, *, layers: int = 4, **shape: int) -> Any:
    """Build a device pool of SGLang in CPU memory."""
    import torch

    common = {"size": 1024, "page_size": PAGE_SIZE, "layer_num": layers, "device": "cpu"}
    more = {"dtype": torch.bfloat16, "enable_memory_saver": False}
    return found("sglang.srt.mem_cache.memory_pool", name)(**common, **more, **shape)


def storage_config(extra: dict[str, Any]) -> Any:
    """What ``HiCacheController._generate_storage_config`` makes for one rank."""
    kind = found("sglang.srt.mem_cache.hicache_storage", "HiCacheStorageConfig")
    values = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0}
    values |= {"attn_cp_size": 1, "is_mla_model": False, "enable_storage_metrics": False}
    given: dict[str, Any] = {**values, "is_page_first_layout": True, "model_name": "bench"}
    given["extra_config"] = extra
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})
