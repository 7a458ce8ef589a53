"""Hooks in place right after SGLang's own import, and no import of ours."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from hicache_obs.hooks import install
from hicache_obs.hooks.around import Call, Observer, around
from hicache_obs.hooks.install import LateHooks
from hicache_obs.sglang_targets import Target

PACKAGE = "hooked_package"
SOURCES = {
    "alpha": "def work(x=1):\n    return x + 1\n\nclass Pool:\n    def __init__(self, size):\n"
    "        self.size = size\n",
    "beta": f"from {PACKAGE}.alpha import work\n\ndef use():\n    return work(10)\n",
    "broken": "def work(): ...\nraise RuntimeError('broken module')\n",
    "lonely": "VALUE = 1\n",
}
WORK = Target("host_pool", f"{PACKAGE}.alpha", "work")
INIT = Target("host_pool", f"{PACKAGE}.alpha", "Pool.__init__")


class Registry:
    """What is used of SGLang's HookRegistry (0.5.11 to 0.5.23), for AROUND hooks only."""

    _hooks: ClassVar[dict[str, list[tuple[object, Callable[..., Any], None]]]]
    _patched: ClassVar[set[str]]

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: object) -> None:
        assert hook_type == "around"
        cls._hooks.setdefault(target, []).append((hook_type, hook, None))

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hooks in sorted(cls._hooks.items()):
            if target in cls._patched:
                continue
            path, name = target.rsplit(".", 1)
            place = pkgutil.resolve_name(path)
            original = wrapped = getattr(place, name)
            for _, hook, _ in hooks:
                wrapped = cls._wrap(wrapped, hook)
            setattr(place, name, wrapped)
            for module in list(sys.modules.values()):
                for key, value in list(vars(module).items()):
                    if value is original:
                        setattr(module, key, wrapped)
            cls._patched.add(target)

    @staticmethod
    def _wrap(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return hook(original, *args, **kwargs)

        return wrapper


@pytest.fixture(autouse=True)
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Points whose observer ran; a registry, a package to hook, and all of it gone afterwards."""
    observed: list[str] = []

    def observing(point: str) -> Callable[..., Any]:
        def observer(call: Call) -> Iterator[None]:
            observed.append(point)
            yield

        made: Observer = observer
        return around(point, made)

    registry = ModuleType("sglang.srt.plugins.hook_registry")
    fresh = type("HookRegistry", (Registry,), {"_hooks": {}, "_patched": set()})
    registry.HookRegistry = fresh  # type: ignore[attr-defined]
    registry.HookType = type("HookType", (), {"AROUND": "around"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setattr(install, "around", observing)
    monkeypatch.setattr(install, "_state", install._Installed())
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield observed
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, LateHooks)]


def registry() -> Any:
    return sys.modules["sglang.srt.plugins.hook_registry"].HookRegistry  # type: ignore[attr-defined]


def load(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


def waiting() -> bool:
    return any(isinstance(finder, LateHooks) for finder in sys.meta_path)


# Modules that SGLang imports later


def test_installing_imports_nothing() -> None:
    before = set(sys.modules)
    install.install([WORK, INIT, Target("worker", f"{PACKAGE}.beta", "use")])
    assert set(sys.modules) == before


def test_a_module_is_hooked_right_after_its_import(seen: list[str]) -> None:
    install.install([WORK, INIT])
    alpha = load("alpha")
    assert alpha.work(3) == 4
    assert alpha.Pool(9).size == 9
    assert seen == ["host_pool"] * 2
    assert install.is_installed(WORK)
    assert install.is_installed(INIT)


def test_one_who_imports_the_name_gets_the_hooked_one(seen: list[str]) -> None:
    install.install([WORK])
    assert load("beta").use() == 11
    assert seen == ["host_pool"]


def test_nobody_waits_when_all_are_hooked() -> None:
    install.install([WORK, Target("worker", f"{PACKAGE}.beta", "use")])
    load("alpha")
    assert waiting()
    load("beta")
    assert not waiting()


def test_a_module_has_its_own_loader_afterwards() -> None:
    install.install([WORK])
    alpha = load("alpha")
    plain = type(load("lonely").__loader__)
    assert type(alpha.__loader__) is plain
    assert type(alpha.__spec__.loader) is plain


def test_a_module_can_be_reloaded() -> None:
    install.install([WORK])
    assert importlib.reload(load("alpha")).work(1) == 2


def test_looking_for_a_module_does_not_hook_it(seen: list[str]) -> None:
    install.install([WORK])
    spec = importlib.util.find_spec(WORK.module)
    assert spec is not None
    assert spec.origin is not None
    assert spec.origin.endswith("alpha.py")
    assert load("alpha").work() == 2
    assert seen == ["host_pool"]


def test_an_import_that_fails_fails_as_before() -> None:
    install.install([Target("host_pool", f"{PACKAGE}.broken", "work")])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken module"):
            load("broken")
    assert waiting()


def test_a_module_that_does_not_exist() -> None:
    install.install([Target("host_pool", f"{PACKAGE}.absent", "work")])
    with pytest.raises(ModuleNotFoundError, match="absent"):
        load("absent")


def test_other_modules_are_left_alone(seen: list[str]) -> None:
    install.install([WORK])
    lonely = load("lonely")
    assert lonely.VALUE == 1
    assert waiting()
    assert seen == []


def test_a_registry_that_breaks_does_not_break_the_import(
    monkeypatch: pytest.MonkeyPatch, counted: Callable[[], dict[str, int]]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("registry")

    install.install([WORK])
    monkeypatch.setattr(registry(), "register", fail)
    assert load("alpha").work(1) == 2
    assert counted() == {"late_hooks": 1}


# Modules that are loaded already


def test_a_loaded_module_is_left_to_sglangs_apply(seen: list[str]) -> None:
    alpha = load("alpha")
    install.install([WORK])
    assert not waiting()
    alpha.work()
    assert seen == []
    registry().apply_hooks()
    alpha.work()
    assert seen == ["host_pool"]


def test_what_another_has_applied_already_gets_ours_on_top(seen: list[str]) -> None:
    theirs: list[str] = []

    def hook(original: Callable[..., Any], *args: Any) -> Any:
        theirs.append("theirs")
        return original(*args)

    alpha = load("alpha")
    registry().register(WORK.path, hook, "around")
    registry().apply_hooks()
    install.install([WORK])
    registry().apply_hooks()
    assert alpha.work(1) == 2
    assert (theirs, seen) == (["theirs"], ["host_pool"])
    assert install.is_installed(WORK)


# Other plug-ins


def test_what_another_only_registered_is_not_applied_by_us(seen: list[str]) -> None:
    theirs: list[str] = []

    def hook(original: Callable[..., Any], *args: Any) -> Any:
        theirs.append("theirs")
        return original(*args)

    later = f"{PACKAGE}.beta.use"
    registry().register(later, hook, "around")
    install.install([WORK])
    load("alpha").work()
    assert seen == ["host_pool"]
    assert later not in registry()._patched
    assert f"{PACKAGE}.beta" not in sys.modules
    registry().apply_hooks()
    assert load("beta").use() == 11
    assert theirs == ["theirs"]


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_target_of_two_is_observed_once_by_each(seen: list[str], ours_first: bool) -> None:
    theirs: list[str] = []

    def hook(original: Callable[..., Any], *args: Any) -> Any:
        theirs.append("theirs")
        return original(*args)

    if ours_first:
        install.install([WORK])
    registry().register(WORK.path, hook, "around")
    if not ours_first:
        install.install([WORK])
    registry().apply_hooks()
    assert load("alpha").work(1) == 2
    assert (theirs, seen) == (["theirs"], ["host_pool"])


# Report


def test_report() -> None:
    absent_name = Target("host_pool", f"{PACKAGE}.lonely", "not_there")
    absent_module = Target("host_pool", f"{PACKAGE}.absent", "work")
    not_yet = Target("host_pool", f"{PACKAGE}.beta", "use")
    install.install([WORK, INIT, absent_name, absent_module, not_yet])
    load("alpha")
    load("lonely")
    told = install.report()
    assert (told.installed, told.pending) == (2, 1)
    assert sorted(told.missing) == sorted([absent_name.path, absent_module.path])
    assert f"{PACKAGE}.beta" not in sys.modules


def test_a_hook_that_was_replaced_is_missing() -> None:
    install.install([WORK])
    alpha = load("alpha")
    alpha.work = lambda: 0
    assert install.report().missing == (WORK.path,)


def test_a_hook_below_anothers_is_installed() -> None:
    install.install([WORK])
    alpha = load("alpha")
    ours = alpha.work

    @functools.wraps(ours)
    def over() -> Any:
        return ours()

    alpha.work = over
    assert install.is_installed(WORK)


def test_nothing_installed_reports_nothing() -> None:
    told = install.report()
    assert (told.installed, told.pending, told.missing) == (0, 0, ())
