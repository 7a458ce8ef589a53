"""Loading the plug-in, in child processes of the real SGLang releases."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from bench.harness import RELEASES as BENCH_RELEASES
from bench.harness import run_python
from conftest import releases

from hicache_obs.sglang_targets import RELEASES, targets_for

LOAD = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
import sglang.srt.plugins as plugins
before = set(sys.modules)
plugins.load_plugins()
loaded = sorted(set(sys.modules) - before)
"""
SHOW = "print('RESULT', json.dumps({}))"


def result(release: str, code: str, env: dict[str, str] | None = None) -> tuple[Any, str]:
    """What the child printed after RESULT, and its log."""
    done = run_python(release, code, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")), done.stderr


def is_ours_or_stdlib(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in {"hicache_obs", *sys.stdlib_module_names}


def test_bench_and_package_name_the_same_releases() -> None:
    assert BENCH_RELEASES == RELEASES


@pytest.mark.parametrize("release", releases(*RELEASES))
def test_load_imports_only_ours_and_then_hooks_what_sglang_imports(release: str) -> None:
    code = f"""{LOAD}
import sglang.srt.managers.scheduler
after_scheduler = "prometheus_client" in sys.modules
import sglang.srt.mem_cache.kv_cache_builder if {release >= "0.5.13"} else None
import sglang.srt.mem_cache.storage.mooncake_store.mooncake_store
import sglang.srt.distributed.device_communicators.mooncake_transfer_engine
from hicache_obs.hooks import install
report = install.report()
waiting = [f for f in sys.meta_path if type(f).__module__.startswith("hicache_obs")]
{
        SHOW.format(
            "dict(loaded=loaded, prometheus=after_scheduler, installed=report.installed, "
            "pending=report.pending, missing=report.missing, waiting=len(waiting))"
        )
    }
""".replace(
        f"import sglang.srt.mem_cache.kv_cache_builder if {release >= '0.5.13'} else None",
        "import sglang.srt.mem_cache.kv_cache_builder" if release >= "0.5.13" else "",
    )
    found, log = result(release, code)

    assert "hicache_obs.plugin" in found["loaded"]
    assert [module for module in found["loaded"] if not is_ours_or_stdlib(module)] == []
    assert not found["prometheus"], "prometheus_client was imported with the scheduler"
    assert found["missing"] == []
    assert found["installed"] + found["pending"] == len(targets_for(release))
    assert found["installed"] >= 20
    assert found["waiting"] == 1, "modules that this process has not imported are waited for"
    assert "ERROR" not in log
    assert "Failed to" not in log


@pytest.mark.parametrize(
    "env", [{"HICACHE_OBS_ENABLED": "0"}, {"SGLANG_PLUGINS": "another"}], ids=["enabled", "plugins"]
)
def test_switched_off_leaves_nothing(env: dict[str, str]) -> None:
    code = f"""{LOAD}
import sglang.srt.managers.scheduler as scheduler
{
        SHOW.format(
            "dict(hooks='hicache_obs.hooks.install' in sys.modules, "
            "wrapped=hasattr(scheduler.Scheduler.__init__, '__wrapped__'), "
            "waiting=any('hicache' in type(f).__module__ for f in sys.meta_path))"
        )
    }
"""
    found, _ = result("0.5.14", code, env)
    assert found == {"hooks": False, "wrapped": False, "waiting": False}


def test_a_name_that_the_release_lacks_is_missing_and_no_error() -> None:
    code = f"""
import hicache_obs.sglang_targets as targets
targets.TARGETS += (
    targets.Target("pin", "sglang.srt.managers.scheduler", "Scheduler.gone"),
    targets.Target("pin", "sglang.srt.no_such_module", "gone"),
)
{LOAD}
import sglang.srt.managers.scheduler
from hicache_obs.hooks import install
{SHOW.format("install.report().missing")}
"""
    found, log = result("0.5.14", code)
    assert found == [
        "sglang.srt.managers.scheduler.Scheduler.gone",
        "sglang.srt.no_such_module.gone",
    ]
    assert "ERROR" not in log


def test_a_release_newer_than_all_known_is_tried_with_the_newest_names() -> None:
    code = f"""
import sglang.version
sglang.version.__version__ = "0.9.0"
{LOAD}
import sglang.srt.managers.scheduler
from hicache_obs.hooks import install
{SHOW.format("dict(missing=install.report().missing, installed=install.report().installed)")}
"""
    found, log = result("0.5.23", code)
    assert found["missing"] == []
    assert found["installed"] > 5
    assert "ERROR" not in log
