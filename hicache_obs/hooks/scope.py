"""What the hooks of one process know of where they are: role, pool being built, registration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hicache_obs import sglang_pools

T = TypeVar("T")

TARGET, DRAFT = "target", "draft"

_role: ContextVar[str] = ContextVar("hicache_obs_role", default=TARGET)
_build: ContextVar[Build | None] = ContextVar("hicache_obs_build", default=None)
_registering: ContextVar[Registering | None] = ContextVar("hicache_obs_registering", default=None)

_owner: ContextVar[str] = ContextVar("hicache_obs_owner", default="")

_ALIASES = {"full": "kv"}
_OF_A_DRAFT = {"kv": "draft", "other": "draft", "swa": "draft_swa", "indexer": "draft_indexer"}
"""SGLang's names for a target's pools, and for those of a draft."""


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
    pin_code: str = ""
    """The code of a page-locking that failed, "" if none did."""
    actual: str = ""
    """The allocator that its memory came from, "" where it has none."""

    def take_over(self, shared: Build) -> None:
        """The pool's memory was asked for by *shared*, before the pool."""
        self.requested, self.requested_type = shared.requested, shared.requested_type
        self.allocator, self.fallback, self.reason = (
            shared.allocator,
            shared.fallback,
            shared.reason,
        )


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


def where() -> tuple[str, str]:
    """Role and pool of what is being built; no pool outside of a constructor."""
    started = build()
    return (started.role, started.pool) if started else (role(), "")


def allocator() -> str:
    """The allocator of what is being built."""
    started = build()
    return started.allocator if started else "other"


def registering() -> Registering | None:
    return _registering.get()


@contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Let *variable* be *value* meanwhile."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def as_role(name: str) -> AbstractContextManager[None]:
    return during(_role, name)


def owned_by(owner: str) -> AbstractContextManager[None]:
    """Pools built meanwhile are *owner*'s (``decode_offload``, ``hisparse``)."""
    return during(_owner, owner)


def building(started: Build) -> AbstractContextManager[None]:
    return during(_build, started)


def handing_over(started: Registering) -> AbstractContextManager[None]:
    return during(_registering, started)


def name_pool(pool_class: type, label: object = None) -> tuple[str, str]:
    """Role and pool of a pool under construction.

    An owner outside the cache tree gives its own name. Else, in rising order: what the class is
    for, the builder's scope, and the label that SGLang gave to the constructor (``pool_label``,
    0.5.18 and later: kv, full, swa, draft, draft_swa; ``pool_name`` of DeepSeek-V4 pools). The
    PoolName of a pool's group or registration outranks all of them (``name_registered``).
    """
    of_class = _pool_of(pool_class)
    owner = _owner.get() or (of_class if of_class in sglang_pools.OUTSIDE else "")
    if owner:
        return TARGET, owner
    text = str(label) if label else ""
    pool = sglang_pools.pool_label(_ALIASES.get(text, text))
    pool = of_class if pool == sglang_pools.OTHER else pool
    if pool.startswith("draft"):
        return DRAFT, pool
    if role() == DRAFT:
        return DRAFT, _OF_A_DRAFT.get(pool, pool)
    return TARGET, pool


def _pool_of(pool_class: type) -> str:
    """What the class or the nearest of its bases that we know is for."""
    for known in pool_class.__mro__:
        pool = sglang_pools.pool_of_class(known.__name__)
        if pool != sglang_pools.OTHER:
            return pool
    return sglang_pools.OTHER


def name_registered(pool_name: Any) -> tuple[str, str]:
    """Role and pool by SGLang's PoolName (mem_cache/hicache_storage.py)."""
    pool = sglang_pools.pool_label(str(getattr(pool_name, "value", pool_name)))
    return (DRAFT if pool.startswith("draft") else TARGET), pool
