"""Pools, buffers and backends of shapes that nobody foresaw: served unchanged, recorded as other.

SGLang's own tests, which hand mocks to its storage backends; mocks in place of every argument that
a hook looks at; host pool classes and a backend that an operator's own plug-in brings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.harness import BENCH, run_python
from conftest import Run, releases

OF_SGLANG = """
import os, sys, unittest
sys.path.insert(0, {bench!r})
{plugins}
import vendors
vendors.install()
vendors.pageable_tensors()
names = ["sglang.srt.mem_cache.storage.nixl.test_hicache_nixl_storage"]
os.dup2(2, 1)
said = {{}}
for name in names:
    try:
        module = __import__(name, fromlist=["x"])
    except Exception as error:
        said[name] = type(error).__name__
        continue
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    bad = sorted(str(test) for test, _ in result.failures + result.errors)
    said[name] = [result.testsRun, bad]
import json
open(os.environ["OUT"], "w").write(json.dumps(said))
"""

MOCKS = """
import json, os, re, sys, unittest.mock
sys.path.insert(0, {bench!r})
{plugins}
import pool_zoo, pool_zoo_parts, vendors
pool_zoo_parts.PageLocks()
vendors.pageable_tensors()
import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache import memory_pool_host as pools
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory as factory
from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store as ms

Mock = unittest.mock.MagicMock
zoo = pool_zoo.Zoo("default")
MHA = type(zoo.build("mha"))

class OwnPoolHost(MHA):
    "A plug-in's own: one more buffer, which is a mock."
    def init_kv_buffer(self):
        self.more = Mock()
        return super().init_kv_buffer()

class BarePoolHost:
    "Nothing of SGLang's."
    kv_buffer = object()

def small(what):
    "Its type; of a mock that only."
    return what if isinstance(what, (int, str)) else type(what).__name__

store = Mock(spec=ms.MooncakeStore)
register = ms.MooncakeStore.register_buffer
calls = dict(
    mocked_store=lambda: register(Mock(), torch.empty(8)),
    mocked_buffer=lambda: register(Mock(), Mock()),
    no_buffer=lambda: register(store, None),
    text=lambda: register(Mock(), "memory"),
    anchor=lambda: ms.MooncakeStore.register_mem_pool_host(Mock(), Mock()),
    bare_anchor=lambda: ms.MooncakeStore.register_mem_pool_host(Mock(), BarePoolHost()),
    side=lambda: ms.MooncakeStore.register_mem_host_pool_v2(Mock(), Mock(), Mock()),
    side_named=lambda: ms.MooncakeStore.register_mem_host_pool_v2(Mock(), Mock(), "a name"),
    side_bare=lambda: ms.MooncakeStore.register_mem_host_pool_v2(
        Mock(), BarePoolHost(), PoolName.MAMBA
    ),
    attach=lambda: HiCacheController.attach_storage_backend(Mock(), Mock()),
    attach_nothing=lambda: HiCacheController.attach_storage_backend(Mock(), None),
    detach=lambda: HiCacheController.detach_storage_backend(Mock()),
    setup=lambda: ms.MooncakeStore(Mock(), Mock()),
    setup_nothing=lambda: ms.MooncakeStore(None, None),
    setup_wrong=lambda: ms.MooncakeStore(1, 2, 3, 4),
    create=lambda: factory.create_backend("no such backend", Mock(), Mock()),
    create_mock=lambda: factory.create_backend(Mock(), Mock(), Mock()),
    own_pool=lambda: pool_zoo._mha(zoo, OwnPoolHost).kv_buffer.nbytes,
    mocked_device_pool=lambda: MHA(Mock(), 2.0, 0, 64, "page_first_direct"),
    no_device_pool=lambda: MHA(None, 2.0, 0, 64, "page_first_direct"),
    no_arguments=lambda: MHA(),
)
said = {{}}
for name, call in calls.items():
    try:
        said[name] = small(call())
    except Exception as error:
        text = re.sub("0x[0-9a-f]+|id='[0-9]+'", "", str(error))
        said[name] = type(error).__name__ + ": " + text[:300]
open(os.environ["OUT"], "w").write(json.dumps(said))
"""


@pytest.fixture
def both(tmp_path: Path) -> Any:
    """What a program says without the plug-in and with it, and what was recorded."""

    def run(release: str, program: str) -> tuple[dict[str, Any], dict[str, Any], Run]:
        said = []
        for plugins in ("", "from sglang.srt.plugins import load_plugins; load_plugins()"):
            out = tmp_path / f"out-{bool(plugins)}"
            env = {"HICACHE_OBS_STATE_DIR": str(tmp_path / "state"), "OUT": str(out)}
            code = program.format(bench=str(BENCH), plugins=plugins)
            done = run_python(release, code, env=env, timeout=250)
            assert out.exists(), done.stderr[-3000:]
            said.append(json.loads(out.read_text()))
        return said[0], said[1], Run(True, 0, "", [], tmp_path / "state", "", "")

    return run


@pytest.mark.parametrize("release", releases("0.5.11", "0.5.12", sample=("0.5.12",)))
def test_sglangs_own_tests_of_its_backends(both: Any, release: str) -> None:
    """Those that its wheel holds and that run here: of NIXL's store, on mocked agents."""
    without, with_it, run = both(release, OF_SGLANG)
    assert with_it == without
    assert any(isinstance(each, list) and each[0] > 3 for each in without.values()), without
    assert run.of("obs_error") == []


@pytest.mark.parametrize("release", releases("0.5.12", "0.5.14", "0.5.23", sample=("0.5.23",)))
def test_mocks_in_place_of_everything(both: Any, release: str) -> None:
    without, with_it, run = both(release, MOCKS)
    assert with_it == without
    assert run.of("obs_error") == []
    assert without["own_pool"] > 0
    [own] = run.of("pool", pool_class="OwnPoolHost", outcome="success")
    assert (own["pool"], own["bytes"]) == ("kv", without["own_pool"])
    of_mocks = run.of("registration")
    assert {(event["role"], event["allocator"]) for event in of_mocks} <= {
        *(("none", "other"), ("target", "other"), ("target", "default")),
    }
