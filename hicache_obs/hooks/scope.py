"""What the hooks of one process know of where they are: role, pool being built, registration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

TARGET, DRAFT = "target", "draft"

_role: ContextVar[str] = ContextVar("hicache_obs_role", default=TARGET)
_build: ContextVar[Build | None] = ContextVar("hicache_obs_build", default=None)
_registering: ContextVar[Registering | None] = ContextVar("hicache_obs_registering", default=None)

_DRAFT_LABELS = {"draft": "draft", "draft_swa": "draft_swa", "draft_indexer": "draft_indexer"}
_TARGET_LABELS = {"kv": "kv", "full": "kv", "swa": "swa"}


@dataclass
class Build:
    """A host pool whose constructor is running. *requested* is what SGLang asked for."""

    owner: int
    role: str
    pool: str
    requested: str = ""
    requested_type: object = None
    allocator: str = ""
    fallback: str = ""
    reason: str = ""
    """Why its memory is none, where SGLang did not notice (``null_pointer``)."""
    segments: list[tuple[int, int, str]] = field(default_factory=list)


@dataclass
class Registering:
    """A host pool whose buffers are being handed to the store."""

    api: str
    role: str
    pool: str
    allocator: str
    call: int = 0
    """Number of the native call that runs now."""
    buffers: int = 0
    bytes: int = 0
    failed: bool = False


def role() -> str:
    return _role.get()


def build() -> Build | None:
    return _build.get()


def registering() -> Registering | None:
    return _registering.get()


@contextmanager
def as_role(name: str) -> Iterator[None]:
    token = _role.set(name)
    try:
        yield
    finally:
        _role.reset(token)


@contextmanager
def building(started: Build) -> Iterator[None]:
    token = _build.set(started)
    try:
        yield
    finally:
        _build.reset(token)


@contextmanager
def handing_over(started: Registering) -> Iterator[None]:
    token = _registering.set(started)
    try:
        yield
    finally:
        _registering.reset(token)


def name_pool(label: object) -> tuple[str, str]:
    """Role and pool of a pool under construction.

    ``pool_label`` (0.5.18 and later: kv, full, swa, draft, draft_swa) outranks the builder's
    scope; the PoolName given at registration outranks both (``name_registered``).
    """
    text = str(label) if label else ""
    if text in _DRAFT_LABELS:
        return DRAFT, _DRAFT_LABELS[text]
    if role() == DRAFT:
        return DRAFT, "draft_swa" if text == "swa" else "draft"
    return TARGET, _TARGET_LABELS.get(text, text or "kv")


def name_registered(pool_name: Any) -> tuple[str, str]:
    """Role and pool by SGLang's PoolName (mem_cache/hicache_storage.py)."""
    text = str(getattr(pool_name, "value", pool_name))
    return (DRAFT if text.startswith("draft") else TARGET), text
