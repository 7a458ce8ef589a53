"""Role, pool under construction, and registration of the running code."""

from __future__ import annotations

import enum
import threading

import pytest

from hicache_obs.hooks import scope
from hicache_obs.hooks.scope import Build, Registering


def test_the_role_is_target_unless_said() -> None:
    assert scope.role() == "target"
    with scope.as_role(scope.DRAFT):
        assert scope.role() == "draft"
        with scope.as_role(scope.TARGET):
            assert scope.role() == "target"
        assert scope.role() == "draft"
    assert scope.role() == "target"


def test_scopes_end_with_an_exception() -> None:
    build = Build(1, "draft", "draft")
    over = Registering("api", "draft", "draft", "default")

    def fail() -> None:
        with scope.as_role(scope.DRAFT), scope.building(build), scope.handing_over(over):
            assert (scope.build(), scope.registering()) == (build, over)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (scope.role(), scope.build(), scope.registering()) == ("target", None, None)


def test_an_inner_build_hides_the_outer_until_it_ends() -> None:
    outer, inner = Build(1, "target", "kv"), Build(2, "target", "swa")
    with scope.building(outer):
        with scope.building(inner):
            assert scope.build() is inner
        assert scope.build() is outer
    assert scope.build() is None


def test_another_thread_has_scopes_of_its_own() -> None:
    told: list[object] = []
    with scope.as_role(scope.DRAFT), scope.building(Build(1, "draft", "draft")):
        thread = threading.Thread(target=lambda: told.extend((scope.role(), scope.build())))
        thread.start()
        thread.join()
    assert told == ["target", None]


@pytest.mark.parametrize(
    ("role", "label", "named"),
    [
        ("target", None, ("target", "kv")),
        ("target", "", ("target", "kv")),
        ("target", "kv", ("target", "kv")),
        ("target", "full", ("target", "kv")),
        ("target", "swa", ("target", "swa")),
        ("target", "mamba", ("target", "mamba")),
        ("target", "draft", ("draft", "draft")),
        ("target", "draft_swa", ("draft", "draft_swa")),
        ("target", "draft_indexer", ("draft", "draft_indexer")),
        ("draft", None, ("draft", "draft")),
        ("draft", "kv", ("draft", "draft")),
        ("draft", "full", ("draft", "draft")),
        ("draft", "swa", ("draft", "draft_swa")),
        ("draft", "draft_swa", ("draft", "draft_swa")),
    ],
)
def test_name_of_a_pool_under_construction(
    role: str, label: object, named: tuple[str, str]
) -> None:
    with scope.as_role(role):
        assert scope.name_pool(MHATokenToKVPoolHost, label) == named


class HostKVCache: ...


class MHATokenToKVPoolHost(HostKVCache): ...


class MambaPoolHost(HostKVCache): ...


class DSAIndexerPoolHost(HostKVCache): ...


class DeepSeekV4PagedHostPool(HostKVCache): ...


class OfAPlugin(HostKVCache): ...


class OfAPluginOverMamba(MambaPoolHost): ...


@pytest.mark.parametrize(
    ("role", "pool_class", "label", "named"),
    [
        ("target", MambaPoolHost, None, ("target", "mamba")),
        ("target", DSAIndexerPoolHost, None, ("target", "indexer")),
        ("target", DSAIndexerPoolHost, "qsa_indexer", ("target", "indexer")),
        ("draft", DSAIndexerPoolHost, None, ("draft", "draft_indexer")),
        ("target", DeepSeekV4PagedHostPool, "deepseek_v4_c128", ("target", "deepseek_v4_c128")),
        ("target", DeepSeekV4PagedHostPool, "swa", ("target", "swa")),
        ("target", DeepSeekV4PagedHostPool, "of a plug-in", ("target", "other")),
        ("draft", DeepSeekV4PagedHostPool, "draft_swa", ("draft", "draft_swa")),
        ("target", OfAPlugin, None, ("target", "other")),
        ("target", OfAPlugin, "kv", ("target", "kv")),
        ("draft", OfAPlugin, None, ("draft", "draft")),
        ("target", OfAPluginOverMamba, None, ("target", "mamba")),
    ],
)
def test_name_by_class(
    role: str, pool_class: type, label: str | None, named: tuple[str, str]
) -> None:
    with scope.as_role(role):
        assert scope.name_pool(pool_class, label) == named


def test_an_owner_outside_the_cache_tree_names_its_pools() -> None:
    with scope.owned_by("decode_offload"):
        assert scope.name_pool(MHATokenToKVPoolHost, "kv") == ("target", "decode_offload")
    assert scope.name_pool(MHATokenToKVPoolHost, "kv") == ("target", "kv")


class PoolName(enum.Enum):
    KV = "kv"
    DRAFT = "draft"
    DRAFT_SWA = "draft_swa"
    INDEXER = "indexer"


class TextPoolName(str, enum.Enum):
    DRAFT = "draft"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        (PoolName.KV, ("target", "kv")),
        (PoolName.DRAFT, ("draft", "draft")),
        (PoolName.DRAFT_SWA, ("draft", "draft_swa")),
        (PoolName.INDEXER, ("target", "indexer")),
        (TextPoolName.DRAFT, ("draft", "draft")),
        ("draft_indexer", ("draft", "draft_indexer")),
        ("mamba", ("target", "mamba")),
    ],
)
def test_name_at_registration(name: object, named: tuple[str, str]) -> None:
    assert scope.name_registered(name) == named
    with scope.as_role(scope.DRAFT):
        assert scope.name_registered(name) == named
