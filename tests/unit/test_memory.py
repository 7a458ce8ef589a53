"""Addresses and sizes of buffers, of any object that SGLang may hand over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hicache_obs.hooks import memory


class Buffer:
    """What is used of a tensor."""

    def __init__(self, address: int, elements: int, size: int = 2) -> None:
        self._facts = address, elements, size

    def data_ptr(self) -> int:
        return self._facts[0]

    def numel(self) -> int:
        return self._facts[1]

    def element_size(self) -> int:
        return self._facts[2]


class Exploding:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(name)


class ExplodingTensor(Buffer):
    def data_ptr(self) -> int:
        raise RuntimeError("meta tensors have no address")


def test_address_and_size() -> None:
    assert memory.address_and_size(Buffer(4096, 10)) == (4096, 20)
    assert memory.address_and_size(Buffer(0, 0)) == (0, 0)


@pytest.mark.parametrize(
    "odd",
    [None, 5, "text", [], Exploding(), ExplodingTensor(1, 1), SimpleNamespace(data_ptr=4096)],
    ids=lambda odd: type(odd).__name__,
)
def test_what_has_no_address(odd: object) -> None:
    assert memory.address_and_size(odd) is None


def test_ranges_of_a_pool() -> None:
    assert memory.pool_ranges(SimpleNamespace(kv_buffer=Buffer(100, 5))) == [(100, 10)]
    layers = [Buffer(100, 5), Buffer(200, 5)]
    assert memory.pool_ranges(SimpleNamespace(kv_buffer=layers)) == [(100, 10), (200, 10)]
    split = SimpleNamespace(kv_buffer=None, k_buffer=Buffer(1, 1), v_buffer=(Buffer(9, 2),))
    assert memory.pool_ranges(split) == [(1, 2), (9, 4)]


@pytest.mark.parametrize(
    "pool",
    [None, 5, Exploding(), SimpleNamespace(), object()],
    ids=lambda pool: type(pool).__name__,
)
def test_a_pool_without_buffers(pool: object) -> None:
    assert memory.pool_ranges(pool) == []


def test_no_property_runs() -> None:
    class Pool:
        def __init__(self) -> None:
            self.size = 8

        @property
        def kv_buffer(self) -> Buffer:
            raise AssertionError("a property ran")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("__getattr__ ran")

    assert memory.vars_of(Pool()) == {"size": 8}
    assert memory.pool_ranges(Pool()) == []


def test_an_object_without_a_dictionary() -> None:
    class Slots:
        __slots__ = ("size",)

    class Odd:
        __dict__ = 5  # type: ignore[assignment]

    assert memory.vars_of(Slots()) == {}
    assert memory.vars_of(Odd()) == {}


HALF = SimpleNamespace(itemsize=2)


@pytest.mark.parametrize(
    ("dims", "dtype", "size"),
    [
        ((2, 3, 4), HALF, 48),
        ([7], HALF, 14),
        ((), HALF, 2),
        ((0, 9), HALF, 0),
        (None, HALF, 0),
        (5, HALF, 0),
        (("a",), HALF, 0),
        ((2, 3), None, 0),
        ((2, 3), SimpleNamespace(), 0),
        ((Exploding(),), HALF, 0),
    ],
)
def test_requested_bytes(dims: object, dtype: object, size: int) -> None:
    assert memory.requested_bytes(dims, dtype) == size
