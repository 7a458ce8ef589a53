"""Where a pool's memory really came from, and whether it was page-locked.

Real: SGLang's pools, allocators and dispatch of allocations, this machine's huge pages. Stand-ins:
CUDA's runtime (``standins.page_locking``, with recorded codes), torch's pinned memory, and NPU's
entry of SGLang's table of allocations, which is used for the CPU here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.harness import BENCH, run_python
from conftest import Run, releases

from hicache_obs import metrics as m
from hicache_obs import wire
from hicache_obs.updates import updates

POOL = """
import sys
sys.path.insert(0, {bench!r})
from sglang.srt.plugins import load_plugins
{plugins}
import pool_zoo, pool_zoo_parts, standins, vendors
pool_zoo_parts.PageLocks()
vendors.pageable_tensors()
import device_side
{before}
try:
    pool = pool_zoo.Zoo({allocator!r}).build("mha")
    print("built", type(pool.allocator).__name__, pool.kv_buffer.nbytes)
except Exception as error:
    print("raised", type(error).__name__)
"""

AS_ON_AN_NPU = """
try:
    from sglang.srt.mem_cache.pool_host import common
except ImportError:
    from sglang.srt.mem_cache import memory_pool_host as common
common.ALLOC_MEMORY_FUNCS["cpu"] = common.ALLOC_MEMORY_FUNCS["npu"]
"""

AS_ON_ROCM = """
import ctypes
from sglang.srt.mem_cache.pool_host import common
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
class Runtime:
    def hipHostMalloc(self, out, size, flags):
        out._obj.value = libc.malloc(ctypes.c_size_t(size))
        return 0
    def hipHostFree(self, address):
        return 0
common._is_hip, common._hip_runtime = True, Runtime
"""

WITH_MEMFABRIC = """
import types, torch
memfabric = types.ModuleType("memfabric_hybrid")
memfabric.offload = types.SimpleNamespace(
    empty=lambda dims, dtype: torch.empty(dims, dtype=dtype),
    OffloadConfig=types.SimpleNamespace,
    initialize=lambda config: 0,
    OFFLOAD_FLAG_GIANT_PAGE=1,
    Scene=types.SimpleNamespace(LOCAL=0),
)
sys.modules["memfabric_hybrid"] = memfabric
from sglang.srt.mem_cache.pool_host import common, npu_memfabric

def memory(dims, dtype, device, pin_memory, allocator, **more):
    return npu_memfabric.alloc_with_memfabric(dims, dtype, device, pin_memory, allocator)

common.ALLOC_MEMORY_FUNCS["cpu"] = memory
"""

NO_MEMORY_OF_MOONCAKES = """
import mooncake.store
del mooncake.store.MooncakeHostMemAllocator
"""


@pytest.fixture
def build(tmp_path: Path) -> Any:
    def run(
        release: str,
        before: str = "",
        allocator: str = "mooncake",
        **env: str,
    ) -> tuple[Run, str]:
        said = []
        for plugins in ("", "load_plugins()"):
            code = POOL.format(
                bench=str(BENCH),
                plugins=plugins,
                before=before,
                allocator=allocator,
            )
            state = {"HICACHE_OBS_STATE_DIR": str(tmp_path)}
            done = run_python(release, code, env=state | env)
            assert done.stdout, done.stderr[-2000:]
            said.append(done.stdout)
        assert said[0] == said[1], "SGLang behaves otherwise with the plug-in"
        return Run(True, 0, "", [], tmp_path, "", ""), said[1].strip()

    return run


def rows(run: Run, metric: m.Metric) -> dict[tuple[str, ...], float]:
    """The rows of a metric at the end of a journal."""
    found = {}
    for line in run.journals[0].read_bytes().splitlines():
        record = wire.from_line(line)
        assert record.event is not None
        for update in updates(record.event, record.time):
            if update.metric is metric:
                found[update.labels] = update.value
    return found


@pytest.mark.parametrize("release", releases(sample=("0.5.12", "0.5.23")))
def test_an_npu_takes_memory_past_the_allocator(build: Any, release: str) -> None:
    run, said = build(release, AS_ON_AN_NPU)
    assert said.startswith("built MooncakeHostTensorAllocator")
    [pool] = run.of("pool")
    assert (pool["allocator"], pool["requested_allocator"]) == ("torch_pinned", "mooncake")
    [told] = run.of("mismatch")
    assert (told["expected"], told["actual"]) == ("mooncake", "torch_pinned")
    assert told["reason"] == "bypassed"
    [pin] = run.of("pin")
    assert (pin["bytes"], pin["outcome"]) == (pool["bytes"], "success")


@pytest.mark.parametrize("release", releases("0.5.22", "0.5.23", sample=("0.5.23",)))
def test_rocm_takes_memory_of_its_own(build: Any, release: str) -> None:
    """With HSA_USERPTR_FOR_PAGED_MEM=0. HIP's runtime is a stand-in, which allocates."""
    run, said = build(release, AS_ON_ROCM, "default", HSA_USERPTR_FOR_PAGED_MEM="0")
    assert said.startswith("built HostTensorAllocator")
    [pool] = run.of("pool")
    assert (pool["allocator"], pool["requested_allocator"]) == ("hip", "default")
    [segment] = run.of("segment", allocator="hip")
    assert segment["bytes"] == pool["bytes"]
    [pin] = run.of("pin")
    assert (pin["bytes"], pin["outcome"]) == (pool["bytes"], "success")


@pytest.mark.parametrize(
    "release", releases("0.5.20", "0.5.21", "0.5.22", "0.5.23", sample=("0.5.23",))
)
def test_an_npu_takes_memory_of_memfabric(build: Any, release: str) -> None:
    """SGLang's function of it is used for the CPU; the library stands in."""
    run, said = build(release, WITH_MEMFABRIC)
    assert said.startswith("built MooncakeHostTensorAllocator")
    [pool] = run.of("pool")
    assert (pool["allocator"], pool["requested_allocator"]) == ("other", "mooncake")
    assert {event["actual"] for event in run.of("mismatch")} == {"other"}
    assert run.of("pin") == []


@pytest.mark.parametrize(
    "release", releases("0.5.18", "0.5.20", "0.5.21", "0.5.22", "0.5.23", sample=("0.5.23",))
)
def test_shared_memory_has_no_huge_pages(build: Any, release: str) -> None:
    run, said = build(release, allocator="shm", SGLANG_HUGEPAGE_SIZE="2MB")
    assert said.startswith("built ShmHostTensorAllocator")
    assert rows(run, m.FALLBACKS) == {("hugepages", "plain_pages", "shm"): 1}


@pytest.mark.parametrize("release", releases(sample=("0.5.23",)))
def test_a_mooncake_without_its_allocator(build: Any, release: str) -> None:
    run, said = build(release, NO_MEMORY_OF_MOONCAKES)
    assert said.startswith("built HostTensorAllocator")
    [told] = run.of("mismatch")
    assert (told["expected"], told["actual"], told["reason"]) == ("mooncake", "default", "fallback")
    assert rows(run, m.FALLBACKS) == {("mooncake", "default", "import_error"): 1}


@pytest.mark.parametrize(
    "release",
    releases(
        *("0.5.13", "0.5.14", "0.5.15.post1", "0.5.16", "0.5.18"),
        *("0.5.20", "0.5.21", "0.5.22", "0.5.23"),
        sample=("0.5.14", "0.5.23"),
    ),
)
def test_huge_pages_that_nobody_has_reserved(build: Any, release: str) -> None:
    """Up to 0.5.12 SGLang knows no huge pages."""
    reserved = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    if reserved.exists() and reserved.read_text().strip() != "0":
        pytest.skip("this machine has huge pages reserved")
    run, said = build(release, allocator="default", SGLANG_HUGEPAGE_SIZE="2MB")
    assert said.startswith("built HostTensorAllocator")
    assert rows(run, m.FALLBACKS) == {("hugepages", "plain_pages", "no_hugepages"): 1}


@pytest.mark.parametrize("release", ["0.5.12", pytest.param("0.5.11", marks=pytest.mark.full)])
def test_a_code_that_sglang_ignores(build: Any, release: str) -> None:
    run, said = build(release, BENCH_CUDA_RC="1")
    assert said.startswith("built")
    [pool] = run.of("pool")
    [pin] = run.of("pin")
    assert (pin["outcome"], pin["code"], pin["error"], pin["pinned_bytes"]) == (
        "failure",
        "1",
        "",
        0,
    )
    assert pool["outcome"] == "success"
    failed = {labels: value for labels, value in rows(run, m.FAILURE_ACTIVE).items() if value}
    assert failed == {("pinning", "", "target", "kv", "mooncake", "1", "pin"): 1}


@pytest.mark.parametrize(
    "release",
    releases(
        *("0.5.13", "0.5.14", "0.5.15.post1", "0.5.16", "0.5.18"),
        *("0.5.20", "0.5.21", "0.5.22", "0.5.23"),
        sample=("0.5.14", "0.5.23"),
    ),
)
def test_a_code_that_sglang_raises_on(build: Any, release: str) -> None:
    """From 0.5.20 on SGLang fails while it makes the text of its error: a TypeError comes out."""
    run, said = build(release, BENCH_CUDA_RC="2")
    newer = release in ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
    assert said == ("raised TypeError" if newer else "raised RuntimeError")
    [pin] = run.of("pin")
    assert (pin["outcome"], pin["code"]) == ("failure", "2")
    [pool] = run.of("pool")
    assert (pool["outcome"], pool["reason"], pool["code"]) == ("failure", "pin", "2")
    failed = {labels: value for labels, value in rows(run, m.FAILURE_ACTIVE).items() if value}
    assert failed == {("pinning", "", "target", "kv", "mooncake", "2", "pin"): 1}
