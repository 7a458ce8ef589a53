"""A later success ends the row of the failure, whatever was known when it failed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hicache_obs import config, journal, recorder, runs, wire
from hicache_obs import metrics as m
from hicache_obs.hooks.around import around
from hicache_obs.recorder import Recorder
from hicache_obs.updates import updates

STORE_INIT = around("store_init")
REGISTER = around("register_buffer")
SIDE_POOL = around("register_side_pool")


@pytest.fixture
def rec(settings: Callable[..., config.Config], monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder(settings())
    monkeypatch.setattr(recorder, "_recorder", made)
    return made


def active(rec: Recorder) -> list[dict[str, str]]:
    """The failures that stand after all that the journal tells."""
    rec.flush()
    assert rec.config.state_dir is not None
    rows: dict[tuple[str, ...], float] = {}
    for record in journal.read(runs.journal_path(rec.config.state_dir, rec._run.text)):
        assert isinstance(record, wire.Record)
        assert record.event is not None
        for metric, labels, value in updates(record.event, record.time):
            if metric is m.FAILURE_ACTIVE:
                rows[labels] = value
    names = m.FAILURE_ACTIVE.labels
    return [dict(zip(names, row, strict=True)) for row, value in rows.items() if value]


class Store:
    """What is used of a MooncakeStore."""

    def __init__(self, standalone: bool | None) -> None:
        if standalone is not None:
            self.config = SimpleNamespace(
                standalone_storage=standalone,
                protocol="tcp",
                client_server_address="",
                master_server_address="",
            )


class Tensor:
    """What is used of a tensor."""

    def data_ptr(self) -> int:
        return 1 << 20

    def numel(self) -> int:
        return 100

    def element_size(self) -> int:
        return 2


class Pool:
    def __init__(self, allocator: str) -> None:
        self.allocator = type(allocator, (), {})()
        self.kv_buffer = Tensor()


def set_up(standalone: bool | None, error: Exception | None = None) -> None:
    store = Store(standalone)
    if error is None:
        STORE_INIT(lambda _: None, store)
        return

    def fail(_: Store) -> None:
        raise error

    with pytest.raises(type(error)):
        STORE_INIT(fail, store)


def register(store: Store, pool: Pool, name: str, error: Exception | None = None) -> None:
    """As ``register_mem_host_pool_v2`` does: through the base's ``register_buffer``."""

    def native(_: Store, tensor: Tensor) -> None:
        if error is not None:
            raise error

    def v2(given: Store, host_pool: Pool, host_pool_name: str) -> None:
        REGISTER(native, given, host_pool.kv_buffer)

    if error is None:
        SIDE_POOL(v2, store, pool, name)
        return
    with pytest.raises(type(error)):
        SIDE_POOL(v2, store, pool, name)


CODE = RuntimeError("Failed to setup Mooncake store, error code: -1")
REFUSED = RuntimeError("Failed to register buffer to Mooncake Store, error code: -1")
DEFAULT, MOONCAKE = "HostTensorAllocator", "MooncakeHostTensorAllocator"


def test_a_set_up_that_failed_stands(rec: Recorder) -> None:
    set_up(True, CODE)
    (row,) = active(rec)
    assert (row["stage"], row["mode"], row["role"], row["code"]) == (
        "setup",
        "standalone",
        "none",
        "-1",
    )


def test_a_set_up_in_the_same_mode_ends_it(rec: Recorder) -> None:
    set_up(True, CODE)
    set_up(True)
    assert active(rec) == []


def test_a_set_up_ends_a_failure_before_the_mode_was_known(rec: Recorder) -> None:
    set_up(None, ValueError("Either master_server_address or client_server_address is required"))
    assert len(active(rec)) == 1
    set_up(True)
    assert active(rec) == []


def test_a_set_up_ends_a_failure_in_another_mode(rec: Recorder) -> None:
    set_up(True, CODE)
    set_up(False)
    assert active(rec) == []


def test_a_registration_that_failed_stands(rec: Recorder) -> None:
    register(Store(True), Pool(DEFAULT), "draft", REFUSED)
    (row,) = active(rec)
    assert row == {
        "stage": "registration",
        "mode": "standalone",
        "role": "draft",
        "pool": "draft",
        "allocator": "default",
        "code": "-1",
        "cause": "foreign_buffer",
    }


def test_a_registration_of_the_same_kind_ends_it(rec: Recorder) -> None:
    register(Store(True), Pool(DEFAULT), "draft", REFUSED)
    register(Store(True), Pool(DEFAULT), "draft")
    assert active(rec) == []


def test_a_registration_with_another_store_ends_it(rec: Recorder) -> None:
    register(Store(True), Pool(DEFAULT), "draft", REFUSED)
    register(Store(False), Pool(DEFAULT), "draft")
    assert active(rec) == []


def test_a_registration_with_another_allocator_ends_it(rec: Recorder) -> None:
    register(Store(True), Pool(DEFAULT), "draft", REFUSED)
    register(Store(True), Pool(MOONCAKE), "draft")
    assert active(rec) == []


def test_a_registration_of_another_pool_does_not(rec: Recorder) -> None:
    register(Store(True), Pool(DEFAULT), "draft", REFUSED)
    register(Store(True), Pool(DEFAULT), "indexer")
    assert len(active(rec)) == 1


def test_a_registration_does_not_end_a_set_up(rec: Recorder) -> None:
    set_up(True, CODE)
    register(Store(True), Pool(DEFAULT), "draft")
    assert [row["stage"] for row in active(rec)] == ["setup"]
