"""What transport a transfer engine has, told from settings and devices, and when it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hicache_obs import config, journal, recorder, runs, wire
from hicache_obs import events as ev
from hicache_obs.hooks.around import around
from hicache_obs.hooks.transport import used
from hicache_obs.recorder import Recorder

ENGINE = around("transfer_engine")
envs = SimpleNamespace(
    ENABLE_ASCEND_TRANSFER_WITH_MOONCAKE=SimpleNamespace(get=lambda: False),
    MOONCAKE_PROTOCOL=SimpleNamespace(get=lambda: "efa"),
)
"""What SGLang's module has under this name."""


@pytest.mark.parametrize(
    ("requested", "devices", "environ", "actual"),
    [
        ("rdma", "", {}, "rdma"),
        ("rdma", "mlx5_0", {}, "rdma"),
        ("rdma", "mlx5_7, mlx5_1", {}, "rdma"),
        ("rdma", "mlx5_7", {}, "tcp"),
        ("rdma", "", {"MC_FORCE_TCP": ""}, "tcp"),
        ("efa", "", {"MC_FORCE_TCP": "0"}, "tcp"),
        ("efa", "mlx5_7", {}, "efa"),
    ],
)
def test_a_host_with_devices(
    requested: str, devices: str, environ: dict[str, str], actual: str, tmp_path: Path
) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        (tmp_path / name).mkdir()
    assert used(requested, devices, environ, tmp_path) == actual


@pytest.mark.parametrize(
    ("requested", "environ", "actual"),
    [
        ("rdma", {}, "tcp"),
        ("rdma", {"MC_FORCE_MNNVL": "True"}, "rdma"),
        ("tcp", {}, "tcp"),
        ("ascend", {}, "ascend"),
    ],
)
@pytest.mark.parametrize("folder", ["", "no"])
def test_a_host_without_devices(
    requested: str, environ: dict[str, str], actual: str, folder: str, tmp_path: Path
) -> None:
    assert used(requested, "mlx5_0", environ, tmp_path / folder) == actual


def test_devices_that_cannot_be_listed_prove_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert used("rdma", "", {}, tmp_path / "file") == "rdma"


# The hook


class Engine:
    pass


def since_0_5_13(_engine: Engine, hostname: str, device_name: str | None) -> object:
    return envs.MOONCAKE_PROTOCOL


def up_to_0_5_12(_engine: Engine, hostname: str, device_name: str | None) -> object:
    return None


@pytest.fixture
def rec(settings: Callable[..., config.Config], monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder(settings())
    made.worker = replace(recorder.UNKNOWN_WORKER, hicache=True)
    monkeypatch.setattr(recorder, "_recorder", made)
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    return made


def told(rec: Recorder) -> list[ev.Event]:
    """The events of the journal without those that say who it is."""
    rec.flush()
    assert rec.config.state_dir is not None
    path = runs.journal_path(rec.config.state_dir, rec._run.text)
    return [r.event for r in journal.read(path) if isinstance(r, wire.Record) and r.event][2:]


@pytest.mark.parametrize(
    ("function", "requested"), [(since_0_5_13, "efa"), (up_to_0_5_12, "rdma")], ids=["new", "old"]
)
def test_the_protocol_is_the_one_that_this_release_passes(
    function: Callable[..., object],
    requested: str,
    rec: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    ENGINE(function, Engine(), hostname="node", device_name=None)
    entered, returned, chosen = told(rec)
    assert isinstance(entered, ev.CallEntered)
    assert (entered.api, entered.mode) == ("initialize", "transfer_engine")
    assert isinstance(returned, ev.CallReturned)
    assert returned.call == entered.call
    assert chosen == ev.TransportChosen(requested=requested, actual="tcp")


def test_a_failure_has_no_transport_and_goes_through(rec: Recorder) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Mooncake Transfer Engine initialization failed.")

    with pytest.raises(RuntimeError, match="initialization failed"):
        ENGINE(fail, Engine(), hostname="node", device_name="mlx5_0")
    assert [event.kind for event in told(rec)] == ["call_entered", "call_returned"]


def test_settings_that_are_not_where_they_were_change_nothing(
    rec: Recorder, counted: Callable[[], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envs, "MOONCAKE_PROTOCOL", None)
    assert ENGINE(since_0_5_13, Engine(), hostname="node", device_name=None) is None
    assert counted() == {"hook_transfer_engine": 1}
    assert [event.kind for event in told(rec)][:2] == ["call_entered", "call_returned"]


def test_a_process_without_hicache_records_nothing(rec: Recorder) -> None:
    rec.worker = recorder.UNKNOWN_WORKER
    assert ENGINE(up_to_0_5_12, Engine(), hostname="node", device_name=None) is None
    assert not rec.started
