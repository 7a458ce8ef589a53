"""The fixed draft host pool builder: give the draft pool the target's allocator type.

In SGLang 0.5.13 and 0.5.14 ``kv_cache_builder.maybe_register_hicache_draft`` builds the draft
host pool without ``allocator_type``. The draft gets ``HostTensorAllocator`` where the target has
``MooncakeHostTensorAllocator``, and a standalone Mooncake client refuses the buffer. SGLang
0.5.15 passes the storage backend's type (PR 29823).

The fix wraps SGLang's builder and copies none of it: while the builder runs,
``get_allocator_from_storage`` is asked for the default although the target's pool asked for
something else, and the target's type is put in its place. Whatever the backend is, draft and
target then take the same way through SGLang's own function, its fallback included.

What it does not cover: drafts with asymmetric K and V heads. Their host pool has no single
``kv_buffer``, and SGLang raises before anything is registered.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_TYPES = (None, "", "default")
UPSTREAM_BUILDERS = frozenset({"build_hicache_draft_sidecars"})
"""Functions of 0.5.18 and later that build draft pools with an allocator type."""

NOT_COVERED = (
    "The fixed builder does not cover drafts with asymmetric K and V heads: SGLang raises for "
    "them before any registration. Use a draft model with equal head sizes, or start without "
    "--hicache-storage-backend."
)


@dataclass(frozen=True)
class Recognition:
    """What the installed builder's code does, by reading it.

    *code* is ``affected``, ``upstream`` or ``unrecognised``; *registers* tells whether this
    release registers the draft pool with the storage backend at all; *reason* says why.
    """

    code: str
    registers: bool
    reason: str


def recognise(source: str, *, registers: bool) -> Recognition:
    """Read the source of a draft builder function.

    Affected code constructs host pools and gives them no ``allocator_type``; fixed code gives
    it to each, or leaves the work to a builder that does. Anything else is unrecognised, and
    the fix stays out of it.
    """
    try:
        tree = ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError) as error:
        return Recognition("unrecognised", registers, f"its source cannot be parsed: {error}")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    built = [call for call in calls if _builds_host_pool(call)]
    if not built:
        if UPSTREAM_BUILDERS & {_name(call.func) for call in calls}:
            return Recognition("upstream", registers, "it leaves the pools to a fixed builder")
        return Recognition("unrecognised", registers, "it builds no host pool that we know")
    given = [_passes_allocator_type(call, tree) for call in built]
    if all(answer is True for answer in given):
        return Recognition("upstream", registers, "it passes allocator_type")
    if all(answer is False for answer in given):
        return Recognition("affected", registers, "it builds the pools without allocator_type")
    return Recognition("unrecognised", registers, "its allocator_type cannot be followed")


def _name(func: ast.expr) -> str:
    if isinstance(func, ast.Name):
        return func.id
    if isinstance(func, ast.Attribute):
        return func.attr
    return ""


def _builds_host_pool(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Call):  # get_mha_host_pool_cls(pool)(pool, ...)
        return _name(call.func.func).endswith("host_pool_cls")
    return _name(call.func).endswith("PoolHost")


def _passes_allocator_type(call: ast.Call, tree: ast.AST) -> bool | None:
    """Whether *call* names ``allocator_type``; None if its arguments cannot be followed."""
    if len(call.args) > 1 or any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    if any(keyword.arg == "allocator_type" for keyword in call.keywords):
        return True
    spread = [keyword.value for keyword in call.keywords if keyword.arg is None]
    if not spread:
        return False
    if len(spread) > 1 or not isinstance(spread[0], ast.Name):
        return None
    return _mapping_has_allocator_type(spread[0].id, tree)


def _mapping_has_allocator_type(name: str, tree: ast.AST) -> bool | None:
    """Whether the mapping *name* holds ``allocator_type``.

    It can be followed if it is assigned once, as a plain mapping, and used for ``**name`` only.
    """
    uses = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name}
    assigned: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg is None:
            uses.discard(id(node.value))
        elif isinstance(node, ast.Assign) and [_name(t) for t in node.targets] == [name]:
            assigned.append(node.value)
            uses.discard(id(node.targets[0]))
    if uses or len(assigned) != 1:
        return None
    keys = _keys(assigned[0])
    return None if keys is None else "allocator_type" in keys


def _keys(mapping: ast.expr) -> set[object] | None:
    """The keys of ``dict(a=...)`` or ``{"a": ...}``; None if some of them cannot be read."""
    if isinstance(mapping, ast.Dict):
        if not all(isinstance(key, ast.Constant) for key in mapping.keys):
            return None
        return {key.value for key in mapping.keys if isinstance(key, ast.Constant)}
    if isinstance(mapping, ast.Call) and _name(mapping.func) == "dict" and not mapping.args:
        names = {keyword.arg for keyword in mapping.keywords}
        return None if None in names else set(names)
    return None


def recognise_function(builder: Callable[..., Any], *, registers: bool) -> Recognition:
    """``recognise`` for a function object, hooked or not."""
    try:
        source = inspect.getsource(inspect.unwrap(builder))
    except (OSError, TypeError, ValueError) as error:
        return Recognition("unrecognised", registers, f"its source cannot be read: {error}")
    return recognise(source, registers=registers)


def recognise_installed(package: Path) -> Recognition:
    """``recognise`` for the SGLang at *package* (the folder ``sglang``), without importing it.

    Raises:
        FileNotFoundError: *package* holds no ``srt/managers/cache_controller.py``.
    """
    controller = (package / "srt/managers/cache_controller.py").read_text(encoding="utf-8")
    unified = package / "srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py"
    later = unified.exists() and "build_hicache_draft_sidecars" in unified.read_text("utf-8")
    registers = REGISTERING_METHOD in controller or later
    for path, name in (
        ("srt/mem_cache/kv_cache_builder.py", "maybe_register_hicache_draft"),
        ("srt/managers/scheduler.py", "_maybe_register_hicache_draft"),
    ):
        file = package / path
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return recognise(ast.unparse(node), registers=registers)
    return Recognition("unrecognised", registers, "no draft builder was found")


REGISTERING_METHOD = "_maybe_register_draft_with_storage"
"""HiCacheController's method that registers a draft pool (0.5.13 to 0.5.18)."""


def state_of(recognition: Recognition, policy: str) -> str:
    """The state before a draft is built (design: hicache_draft_builder_info).

    Args:
        policy: HICACHE_OBS_DRAFT_FIX.
    """
    if recognition.code != "affected":
        return recognition.code
    if policy == "off":
        return "off"
    if not recognition.registers and policy != "always":
        return "latent"
    return "pending"


def substitute(state: str, asked: object, target_type: object) -> object:
    """The allocator type to give a draft pool that asked for *asked*.

    Args:
        state: of the builder; only ``pending`` and ``applied`` change anything.
        target_type: what the target's pool asked for.
    """
    if state not in ("pending", "applied") or asked not in DEFAULT_TYPES:
        return asked
    return asked if target_type in DEFAULT_TYPES else target_type
