"""What an installed draft builder does, by reading it, and what the fix puts in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_obs import draft_builder
from hicache_obs.draft_builder import Recognition, recognise, state_of, substitute

AFFECTED = """
    def maybe_register_hicache_draft(*, tree_cache, pool, server_args):
        primary = tree_cache.cache_controller.mem_pool_host
        kw = dict(host_size=0, layout=server_args.hicache_mem_layout)
        if isinstance(pool, MHATokenToKVPool):
            draft = get_mha_host_pool_cls(pool)(pool, **kw)
        elif isinstance(pool, MLATokenToKVPool):
            draft = MLATokenToKVPoolHost(pool, **kw)
        else:
            return
        tree_cache.cache_controller.set_draft_kv_pool(pool, draft)
"""
BY_MAPPING = AFFECTED.replace("host_size=0", "allocator_type=backend")
BY_KEYWORD = AFFECTED.replace("(pool, **kw)", "(pool, host_size=0, allocator_type=backend)")
DELEGATING = """
def maybe_register_hicache_draft(*, tree_cache, plan):
    specs, entries = build_hicache_draft_sidecars(tree_cache, plan)
    tree_cache.register_hicache_draft_pools(specs, entries)
"""


def code(source: str) -> str:
    return recognise(source, registers=True).code


def built_with(*statements: str, call: str = "MLATokenToKVPoolHost(pool, **kw)") -> str:
    lines = ("kw = dict(host_size=0)", *statements, f"return {call}")
    return "def builder(pool, t, base):\n" + "".join(f"    {line}\n" for line in lines)


def test_affected() -> None:
    assert code(AFFECTED) == "affected"
    assert code(AFFECTED.replace("dict(host_size=0", "dict(page_size=1, host_size=0")) == "affected"
    assert code(built_with()) == "affected"
    assert code(built_with(call="pool_host.MHATokenToKVPoolHost(pool, size=0)")) == "affected"


def test_affected_by_a_literal_mapping() -> None:
    assert code("kw = {'host_size': 0}\nMLATokenToKVPoolHost(pool, **kw)") == "affected"


@pytest.mark.parametrize(
    "source",
    [
        BY_MAPPING,
        BY_KEYWORD,
        "kw = {'allocator_type': t}\nMLATokenToKVPoolHost(pool, **kw)",
        built_with(call="MLATokenToKVPoolHost(pool, allocator_type=t, **kw)"),
        built_with(call="MLATokenToKVPoolHost(pool, **kw, allocator_type=t)"),
        DELEGATING,
        DELEGATING.replace("build_hicache", "assembler.build_hicache"),
    ],
    ids=["mapping", "keyword", "literal", "before", "behind", "delegating", "by module"],
)
def test_upstream(source: str) -> None:
    assert code(source) == "upstream"


def test_one_pool_with_and_one_without_is_unrecognised() -> None:
    mixed = AFFECTED.replace(
        "MLATokenToKVPoolHost(pool, **kw)", "MLATokenToKVPoolHost(pool, allocator_type=t)"
    )
    assert code(mixed) == "unrecognised"


@pytest.mark.parametrize(
    "statement",
    [
        "kw.update(allocator_type=t)",
        "kw.setdefault('allocator_type', t)",
        "kw['allocator_type'] = t",
        "kw |= {'allocator_type': t}",
        "kw = kw | {'allocator_type': t}",
        "kw = dict(kw, allocator_type=t)",
        "kw = dict(**base)",
        "kw = {**base}",
        "kw = base",
        "kw, other = dict(allocator_type=t), 1",
        "other = kw = dict(allocator_type=t)",
        "other = kw; other['allocator_type'] = t",
        "add_allocator(kw)",
        "dict.update(kw, allocator_type=t)",
        "(kw := dict(allocator_type=t))",
    ],
)
def test_a_mapping_that_changes_is_unrecognised(statement: str) -> None:
    assert code(built_with(statement)) == "unrecognised"


@pytest.mark.parametrize(
    "call",
    [
        "MLATokenToKVPoolHost(pool, 1.0, 0, t)",
        "MLATokenToKVPoolHost(*base)",
        "MLATokenToKVPoolHost(*base, **kw)",
        "MLATokenToKVPoolHost(pool, **base)",
        "MLATokenToKVPoolHost(pool, **options())",
        "MLATokenToKVPoolHost(pool, **kw, **base)",
    ],
)
def test_arguments_that_cannot_be_followed_are_unrecognised(call: str) -> None:
    assert code(built_with(call=call)) == "unrecognised"


def test_a_mapping_spread_into_the_mapping_is_unrecognised() -> None:
    source = "def builder(pool, base):\n kw = dict(**base, x=1)\n MLATokenToKVPoolHost(pool, **kw)"
    assert code(source) == "unrecognised"


@pytest.mark.parametrize(
    "source",
    ["", "def builder(): pass", "def builder(:", "\0", "x = HostPool(1)", "    bad\n  indent"],
)
def test_what_builds_nothing_is_unrecognised(source: str) -> None:
    found = recognise(source, registers=True)
    assert found.code == "unrecognised"
    assert found.reason


@pytest.mark.parametrize("registers", [True, False])
def test_registration_is_passed_on(registers: bool) -> None:
    assert recognise(AFFECTED, registers=registers).registers is registers


def builder_of_the_test(pool: object, mha_pool_host: Callable[..., object]) -> object:
    return mha_pool_host(pool)


def test_a_function_is_read_through_its_hooks() -> None:
    def hook(*arguments: object) -> object:
        return builder_of_the_test(*arguments)  # type: ignore[arg-type]

    hook.__wrapped__ = builder_of_the_test  # type: ignore[attr-defined]
    found = draft_builder.recognise_function(hook, registers=True)
    assert found == draft_builder.recognise_function(builder_of_the_test, registers=True)
    assert "no host pool" in found.reason


@pytest.mark.parametrize("function", [len, eval("lambda: 1"), dict])
def test_a_function_without_a_source_is_unrecognised(function: Callable[..., object]) -> None:
    found = draft_builder.recognise_function(function, registers=True)
    assert found.code == "unrecognised"
    assert "source" in found.reason


# An installed package


CONTROLLER = "srt/managers/cache_controller.py"
BUILDER = "srt/mem_cache/kv_cache_builder.py"
SCHEDULER = "srt/managers/scheduler.py"
ASSEMBLER = "srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py"
REGISTERING = "class HiCacheController:\n def _maybe_register_draft_with_storage(self): ..."


def package(root: Path, files: dict[str, str]) -> Path:
    for name, text in {CONTROLLER: "", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({BUILDER: AFFECTED.replace("\n    ", "\n"), CONTROLLER: REGISTERING}, ("affected", True)),
        (
            {
                SCHEDULER: "class Scheduler:"
                + AFFECTED.replace("maybe_reg", "_maybe_reg").replace("(*", "(self, *")
            },
            ("affected", False),
        ),
        (
            {BUILDER: BY_MAPPING.replace("\n    ", "\n"), CONTROLLER: REGISTERING},
            ("upstream", True),
        ),
        (
            {BUILDER: DELEGATING, ASSEMBLER: "def build_hicache_draft_sidecars(): ..."},
            ("upstream", True),
        ),
        ({}, ("unrecognised", False)),
        ({BUILDER: "def another(): ..."}, ("unrecognised", False)),
    ],
    ids=["0.5.13", "0.5.11", "0.5.15", "0.5.18", "none", "renamed"],
)
def test_an_installed_package(
    tmp_path: Path, files: dict[str, str], expected: tuple[str, bool]
) -> None:
    found = draft_builder.recognise_installed(package(tmp_path, files))
    assert (found.code, found.registers) == expected


def test_no_package(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        draft_builder.recognise_installed(tmp_path)


# What follows


@pytest.mark.parametrize(
    ("found", "registers", "policy", "state"),
    [
        ("affected", True, "auto", "pending"),
        ("affected", True, "always", "pending"),
        ("affected", True, "off", "off"),
        ("affected", False, "auto", "latent"),
        ("affected", False, "always", "pending"),
        ("affected", False, "off", "off"),
        ("upstream", True, "auto", "upstream"),
        ("upstream", False, "always", "upstream"),
        ("upstream", True, "off", "upstream"),
        ("unrecognised", True, "auto", "unrecognised"),
        ("unrecognised", True, "always", "unrecognised"),
        ("unrecognised", False, "off", "unrecognised"),
    ],
)
def test_state(found: str, registers: bool, policy: str, state: str) -> None:
    assert state_of(Recognition(found, registers, ""), policy) == state


@pytest.mark.parametrize("state", ["pending", "applied"])
@pytest.mark.parametrize("asked", [None, "", "default"])
@pytest.mark.parametrize("target", ["mooncake", "shm", "mori"])
def test_the_draft_gets_the_targets_type(state: str, asked: object, target: object) -> None:
    assert substitute(state, asked, target) == target


@pytest.mark.parametrize("state", ["latent", "upstream", "off", "unrecognised", ""])
def test_other_states_change_nothing(state: str) -> None:
    assert substitute(state, None, "mooncake") is None


def test_a_type_that_was_asked_for_stays() -> None:
    assert substitute("pending", "shm", "mooncake") == "shm"


@pytest.mark.parametrize("target", [None, "", "default"])
@pytest.mark.parametrize("asked", [None, "", "default"])
def test_a_target_with_the_default_changes_nothing(asked: object, target: object) -> None:
    assert substitute("pending", asked, target) is asked
