"""The storage backend attached and detached at run time, as SGLang's scheduler does when its HTTP
server is asked to (``/hicache/storage-backend``).

The scheduler's own ``attach_hicache_storage_wrapped`` and ``detach_hicache_storage_wrapped`` run,
and below them the tree cache and its controller. What stands in: the way of the request from the
HTTP server (a list of steps, or files written by ``harness.Server.tell``), and ``is_fully_idle``,
which reads queues of requests that no scheduler of the bench has.
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import rank_report
from options import Options

_CONTROLLER_FACTS = ("enable_storage", "storage_backend_type")
_THREADS = ("prefetch_thread", "backup_thread")


class Steps:
    """The steps of one rank; `tell` gets what each answered and what stands after it."""

    def __init__(
        self, scheduler: Any, options: Options, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self._scheduler = scheduler
        self._options = options
        self._tell = tell
        self._told = 0
        backend = options.storage_backend
        scheduler.is_fully_idle = lambda *args, **kwargs: True
        scheduler.enable_hierarchical_cache = options.hicache and not options.decode_offload
        scheduler.enable_hicache_storage = options.hicache and backend != "none"

    def take_all(self, steps: Iterable[str]) -> None:
        """Take `steps`, each with the configuration of its option."""
        configs = {
            "attach": self._options.attach_config or self._options.extra_config,
            "attach-failing": self._options.failing_config,
        }
        for step in steps:
            self._take(step, configs.get(step, ""))

    def take_told(self) -> None:
        """Take the step of the next file, if it is there."""
        path = Path(f"{self._options.report}.tell.{self._told}")
        if self._options.report and path.exists():
            self._told += 1
            told = json.loads(path.read_text())
            self._take(told["step"], told["config"])

    def _take(self, step: str, config: str) -> None:
        facts: dict[str, Any] = {"step": step, "success": None, "message": "", "raised": None}
        try:
            if step == "collect":
                gc.collect()
            else:
                answer = self._ask(step, config)
                facts |= {"success": answer.success, "message": answer.message}
        except Exception as error:
            facts["raised"] = {"type": type(error).__name__, "text": str(error)}
        self._tell(facts | self._stands())

    def _ask(self, step: str, config: str) -> Any:
        from sglang.srt.managers import io_struct

        if step == "detach":
            request = io_struct.DetachHiCacheStorageReqInput()
            return self._scheduler.detach_hicache_storage_wrapped(request)
        request = io_struct.AttachHiCacheStorageReqInput(
            hicache_storage_backend="mooncake",
            hicache_storage_backend_extra_config_json=config or None,
        )
        return self._scheduler.attach_hicache_storage_wrapped(request)

    def _stands(self) -> dict[str, Any]:
        """What the objects say now: the tree, its controller, every store that is still there."""
        tree = self._scheduler.tree_cache
        controller = tree.cache_controller
        threads = (getattr(controller, name, None) for name in _THREADS)
        return {
            "tree_enable_storage": tree.enable_storage,
            "scheduler_enable_storage": self._scheduler.enable_hicache_storage,
            "controller": {
                **{name: getattr(controller, name, None) for name in _CONTROLLER_FACTS},
                "storage_backend": type(getattr(controller, "storage_backend", None)).__name__,
                "threads": sum(isinstance(t, threading.Thread) and t.is_alive() for t in threads),
            },
            "stores": rank_report.stores(),
        }
