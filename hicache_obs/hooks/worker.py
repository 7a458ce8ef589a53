"""The worker: who it is, and whether it got past HiCache start-up (``Scheduler.__init__``)."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

from hicache_obs import classify, faults, recorder
from hicache_obs.events import WorkerFailed, WorkerReady, WorkerStarting
from hicache_obs.hooks import draft
from hicache_obs.hooks.around import Call

_CONTEXT = "sglang.srt.runtime_context"
_BUILDER = ("sglang.srt.mem_cache.kv_cache_builder", "maybe_register_hicache_draft")
_OLD_BUILDER = "_maybe_register_hicache_draft"
_MOONCAKE_PACKAGES = (
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine-npu",
)


def scheduler_init(call: Call) -> Iterator[None]:
    """``Scheduler.__init__``: ranks are its arguments up to 0.5.20, in SGLang's runtime context
    from 0.5.21 on. Host pools are built and registered inside it.

    A scheduler without HiCache records nothing, unless a host pool shows up all the same.
    """
    from hicache_obs.hooks import install

    rec = recorder.get()
    rec.worker = describe(call)
    if rec.worker.hicache:
        rec.emit(install.report())
        _report_draft_builder(call)
    yield
    if not rec.worker.hicache and not rec.started:
        return
    rec.emit(install.report())
    if call.error is None:
        rec.ready = True
        rec.emit(WorkerReady(duration_s=call.duration_s))
        return
    stage, cause = rec.blamed(call.error) if call.failed else ("", "")
    if call.failed and not stage:
        cause = classify.start_cause(call.message)
    rec.emit(WorkerFailed(stage=stage, cause=cause, **call.outcome))


def _report_draft_builder(call: Call) -> None:
    """Say what the installed draft builder does before a draft is built."""
    builder = getattr(sys.modules.get(_BUILDER[0]), _BUILDER[1], None)
    if builder is None:
        builder = getattr(type(call.args[0]), _OLD_BUILDER, None)
    if builder is not None:
        draft.recognised(builder)


def describe(call: Call) -> WorkerStarting:
    """The worker's labels. What cannot be read is "": a label is never guessed."""
    arguments = _bound(call)
    server_args = arguments.get("server_args")
    read = _Reader(arguments, server_args, sys.modules.get(_CONTEXT))
    backend = read.text("memory", "hicache_storage_backend")
    extra = read.value("memory", "hicache_storage_backend_extra_config")
    return WorkerStarting(
        model_name=read.text("serving", "served_model_name") or read.text("model", "model_path"),
        engine_type=_engine_type(read),
        tp_rank=read.rank("tp_rank"),
        pp_rank=read.rank("pp_rank"),
        dp_rank=read.rank("dp_rank"),
        server_port=read.text("serving", "port"),
        node_rank=read.text("parallel", "node_rank"),
        nnodes=read.text("parallel", "nnodes"),
        extra_labels=_labels(read.value("observability", "extra_metric_labels")),
        sglang_version=str(getattr(sys.modules.get("sglang.version"), "__version__", "")),
        mooncake_version=_mooncake_version(),
        torch_version=str(getattr(sys.modules.get("torch"), "__version__", "")),
        hicache=bool(read.value("memory", "enable_hierarchical_cache"))
        or bool(read.value("disagg", "disaggregation_decode_enable_offload_kvcache")),
        storage_backend=backend,
        mode=expected_mode(backend, extra, os.environ),
    )


def _bound(call: Call) -> Mapping[str, Any]:
    """The call's arguments by name."""
    original: Callable[..., Any] = inspect.unwrap(call.original)
    try:
        return inspect.signature(original).bind_partial(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return dict(call.kwargs)


class _Reader:
    """Reads a fact from the call's arguments, SGLang's published context, or ServerArgs."""

    def __init__(self, arguments: Mapping[str, Any], server_args: Any, context: Any) -> None:
        self._arguments = arguments
        self._server_args = server_args
        self._context = context

    def value(self, namespace: str, name: str) -> Any:
        """*name* of SGLang's context namespace (0.5.18+), else of ServerArgs, else None."""
        for source in (self._published(namespace), self._server_args):
            try:
                found = getattr(source, name)
            except Exception:  # noqa: BLE001, S112 - an unpublished namespace raises as it likes
                continue
            if found is not None:
                return found
        return None

    def _published(self, namespace: str) -> Any:
        try:
            return getattr(self._context, f"get_{namespace}")()
        except Exception:  # noqa: BLE001 - not published in this process or release
            return None

    def text(self, namespace: str, name: str) -> str:
        found = self.value(namespace, name)
        return "" if found is None else str(found)

    def rank(self, name: str) -> str:
        """A rank: the call's argument up to 0.5.20, SGLang's parallel context from 0.5.21."""
        if name in self._arguments:
            found = self._arguments[name]
            return "" if found is None else str(found)
        return self.text("parallel", name)


def _engine_type(read: _Reader) -> str:
    """As SGLang's scheduler metrics: unified, prefill, decode (dynamic with role switch)."""
    if read.value("disagg", "enable_pd_role_switch"):
        return "dynamic"
    mode = read.text("disagg", "disaggregation_mode")
    return mode if mode in ("prefill", "decode") else "unified"


def _labels(extra: Any) -> dict[str, str]:
    if not extra:
        return {}
    try:
        extra = json.loads(extra) if isinstance(extra, str) else extra
        return {str(name): str(value) for name, value in extra.items()}
    except (ValueError, AttributeError, TypeError) as error:
        faults.count("extra_label", f"--extra-metric-labels cannot be read: {error}")
        return {}


def _mooncake_version() -> str:
    for name in _MOONCAKE_PACKAGES:
        try:
            return metadata.version(name) or ""
        except metadata.PackageNotFoundError:
            continue
    return ""


def expected_mode(backend: str, extra: Any, environ: Mapping[str, str]) -> str:
    """The mode of the Mooncake store that this server will set up; "" for other backends and
    where its configuration cannot be read here.

    In the order of ``MooncakeBaseStore._load_config``: the extra config if it names a server,
    else the configuration file, else the environment.
    """
    if backend != "mooncake":
        return ""
    config = _mapping(extra)
    if config is None:
        return ""
    if not ({"master_server_address", "client_server_address"} & config.keys()):
        path = environ.get("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "")
        config = _mapping(f"@{path}") if path else {}
        if config is None:
            return ""
        if not path:
            text = environ.get("MOONCAKE_STANDALONE_STORAGE", "")
            config = {"standalone_storage": text.strip().lower() in ("1", "true", "yes", "y", "t")}
    return classify.STANDALONE if config.get("standalone_storage") else classify.EMBEDDED


def _mapping(value: Any) -> dict[str, Any] | None:
    """A JSON object given as a mapping, as text, or as ``@file``; None if it is none (SGLang
    also takes files in TOML and YAML)."""
    try:
        if isinstance(value, str) and value.startswith("@"):
            with open(value[1:], encoding="utf-8") as file:
                value = file.read()
        value = json.loads(value) if isinstance(value, str) else value
        return dict(value) if value else {}
    except (OSError, ValueError, TypeError):
        return None
