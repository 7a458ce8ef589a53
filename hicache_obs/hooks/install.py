"""Putting hooks in place through SGLang's HookRegistry, without importing SGLang modules.

The registry imports its targets. So it gets only targets whose module SGLang has imported; for
the others a finder waits, and registers and applies them right after SGLang's own import.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hicache_obs import faults
from hicache_obs.hooks.around import around
from hicache_obs.hooks.cudart import cudart
from hicache_obs.sglang_targets import Target

if TYPE_CHECKING:
    from hicache_obs.events import HooksReported

_REGISTRY = "sglang.srt.plugins.hook_registry"


class _Installed:
    """The targets of this process and the hook of each."""

    def __init__(self) -> None:
        self.targets: tuple[Target, ...] = ()
        self.hooks: dict[str, Any] = {}


_state = _Installed()


def install(targets: Sequence[Target]) -> None:
    """Register hooks on modules that are loaded, and wait for the others."""
    _state.targets = tuple(targets)
    waiting: dict[str, list[Target]] = {}
    loaded = []
    for target in targets:
        module = sys.modules.get(target.module)
        if module is None or _initialising(module):
            waiting.setdefault(target.module, []).append(target)
        elif _register(target):
            loaded.append(target.path)
    # SGLang's load_plugins applies what is new when all plug-ins have registered theirs; what
    # another plug-in has applied already it would pass over in silence.
    _apply([path for path in loaded if path in _registry()._patched])
    if waiting:
        sys.meta_path.insert(0, LateHooks(waiting))


def _registry() -> Any:
    """SGLang's HookRegistry; its private sets are the same in 0.5.11 to 0.5.23."""
    return sys.modules[_REGISTRY].HookRegistry


def _initialising(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _register(target: Target) -> bool:
    """Hand a target to the registry; False if its module does not have the name."""
    if _resolve(target) is None:
        return False
    hook = cudart if target.point == "cudart" else around(target.point)
    if target.table:
        _lead_through_the_module(target)
    _state.hooks[target.path] = hook
    _registry().register(target.path, hook, sys.modules[_REGISTRY].HookType.AROUND)
    return True


def _lead_through_the_module(target: Target) -> None:
    """Let entries of a table of functions call what the function's name is now.

    The registry changes the module's name only; a table keeps the function that it was made with.
    """
    module = sys.modules[target.module]
    function, table = _resolve(target), getattr(module, target.table, None)
    if not isinstance(table, dict):
        return

    @functools.wraps(function)
    def by_name(*args: Any, **kwargs: Any) -> Any:
        return getattr(module, target.name)(*args, **kwargs)

    for key, value in list(table.items()):
        if value is function:
            table[key] = by_name


def _resolve(target: Target) -> Any:
    found: Any = sys.modules.get(target.module)
    for part in target.name.split("."):
        found = getattr(found, part, None)
    return found


class LateHooks(MetaPathFinder):
    """Hooks the targets of a module when SGLang imports it; leaves when none is waited for."""

    def __init__(self, waiting: dict[str, list[Target]]) -> None:
        self._waiting = waiting
        self._busy: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._waiting or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def imported(self, name: str) -> None:
        """SGLang imported *name*: register and apply its targets."""
        targets = self._waiting.pop(name, [])
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        _apply([target.path for target in targets if _register(target)])


class _Loader(Loader):
    """The module's own loader, and ours after it."""

    def __init__(self, loader: Loader, late: LateHooks) -> None:
        self._loader = loader
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._late.imported(module.__name__)
        except Exception as error:  # noqa: BLE001 - SGLang's import succeeded; it stands
            faults.count("late_hooks", error)


def _apply(paths: Sequence[str]) -> None:
    """Apply our hooks on *paths* now, and nothing that belongs to others.

    A target that another plug-in has applied already gets ours on top. One that it has only
    registered is left to the ``apply_hooks`` that must follow, ours included: it may be under
    way further up the stack (it imported this module) and would apply a second time whatever
    is applied here.
    """
    registry = _registry()
    now = {p for p in paths if p in registry._patched or len(registry._hooks.get(p, ())) == 1}
    if not now:
        return
    held = {path for path in registry._hooks if path not in now} - registry._patched
    with _only(registry, now, held):
        registry.apply_hooks()


@contextmanager
def _only(registry: Any, now: set[str], held: set[str]) -> Iterator[None]:
    """Let the registry know, meanwhile, our hooks on *now* alone and *held* as done."""
    hooks = {path: registry._hooks[path] for path in now}
    try:
        for path in now:
            registry._hooks[path] = hooks[path][-1:]
        registry._patched.difference_update(now)
        registry._patched.update(held)
        yield
    finally:
        registry._hooks.update(hooks)
        registry._patched.difference_update(held)


def is_installed(target: Target) -> bool:
    """Whether our hook is in the ``__wrapped__`` chain of what the target's name is now."""
    hook = _state.hooks.get(target.path)
    function: Any = _resolve(target)
    for _ in range(32):
        if function is None or hook is None:
            return False
        for cell in getattr(function, "__closure__", None) or ():
            try:
                if cell.cell_contents is hook:
                    return True
            except ValueError:  # an empty cell
                continue
        function = getattr(function, "__wrapped__", None)
    return False


def report() -> HooksReported:
    """How the hook points stand now. A module that SGLang has not imported is pending, as is a
    vendor's that may never be; a name or module file that this release does not have is missing."""
    from hicache_obs.events import HooksReported

    installed = pending = 0
    missing = []
    for target in _state.targets:
        if target.module in sys.modules:
            if is_installed(target):
                installed += 1
            else:
                missing.append(target.path)
        elif target.of_vendor or _has_file(target.module):
            pending += 1
        else:
            missing.append(target.path)
    return HooksReported(installed=installed, pending=pending, missing=tuple(missing))


def _has_file(module: str) -> bool:
    """Whether a module of SGLang exists on disk, without importing anything."""
    first, *rest = module.split(".")
    for base in getattr(sys.modules.get(first), "__path__", ()):
        path = Path(base).joinpath(*rest)
        if path.with_suffix(".py").exists() or path.is_dir():
            return True
    return False
