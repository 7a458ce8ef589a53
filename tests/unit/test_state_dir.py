"""Where journals live: chosen, created and shared."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache_obs import config, faults, runs

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file any group")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def with_dir(path: Path | str) -> config.Config:
    return config.load({"HICACHE_OBS_STATE_DIR": str(path)})


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    os.umask(before)
    yield os.umask
    os.umask(before)


@pytest.fixture
def no_system_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``/var/lib/hicache-obs`` cannot be made."""
    (tmp_path / "file").touch()
    system = tmp_path / "file" / "hicache-obs"
    monkeypatch.setattr(runs, "SYSTEM_STATE_DIR", system)
    return system


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_created_0770_whatever_the_umask(
    tmp_path: Path, umask: Callable[[int], int], mask: int
) -> None:
    umask(mask)
    directory = tmp_path / "state"
    assert runs.choose_state_dir(with_dir(directory)) == directory
    assert mode(directory) == 0o770


def test_parents_are_created(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b" / "state"
    runs.choose_state_dir(with_dir(directory))
    assert directory.is_dir()


@pytest.mark.parametrize("given", [0o700, 0o755, 0o1777])
def test_an_existing_directory_keeps_its_mode(tmp_path: Path, given: int) -> None:
    tmp_path.chmod(given)
    runs.choose_state_dir(with_dir(tmp_path))
    assert mode(tmp_path) == given


def test_named_below_a_file_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        runs.choose_state_dir(with_dir(tmp_path / "file" / "state"))


@pytest.mark.parametrize("bits", [0o644, 0o755])
def test_a_file_is_no_directory(tmp_path: Path, bits: int) -> None:
    (tmp_path / "file").touch(bits)
    with pytest.raises(OSError, match="file"):
        runs.choose_state_dir(with_dir(tmp_path / "file"))


def test_named_and_not_writable_raises(open_dir: Path, run_python: Callable[..., str]) -> None:
    open_dir.chmod(0o555)
    script = """
import sys
from hicache_obs import config, runs
drop_root()
try:
    runs.choose_state_dir(config.load())
except PermissionError as error:
    print(error.filename)
"""
    assert run_python(script, HICACHE_OBS_STATE_DIR=str(open_dir)).strip() == str(open_dir)


def test_system_directory_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runs, "SYSTEM_STATE_DIR", tmp_path / "lib")
    assert runs.choose_state_dir(config.load({})) == tmp_path / "lib"
    assert not caplog.records


@pytest.mark.parametrize("named", [True, False])
def test_falls_back_to_xdg_with_one_warning(
    no_system_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    named: bool,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    expected = tmp_path / ".local/state/hicache-obs"
    if named:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
        expected = tmp_path / "xdg/hicache-obs"
    assert runs.choose_state_dir(config.load({})) == expected
    assert mode(expected) == 0o770
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(no_system_dir) in record.getMessage()
    assert str(expected) in record.getMessage()
    assert "HICACHE_OBS_STATE_DIR" in record.getMessage()


def test_no_directory_at_all_raises(
    no_system_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        runs.choose_state_dir(config.load({}))


def test_a_user_without_a_home_gets_an_oserror(
    no_system_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_001)
    with pytest.raises(OSError):  # noqa: PT011 - any error that a caller of files expects
        runs.choose_state_dir(config.load({}))


def test_network_file_system_gets_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert runs._filesystem(Path("/proc/self")) == "proc"
    monkeypatch.setattr(runs, "_NETWORK", {runs._filesystem(tmp_path)})
    runs.choose_state_dir(with_dir(tmp_path))
    (record,) = caplog.records
    assert str(tmp_path) in record.getMessage()
    assert "network file system" in record.getMessage()


@needs_root
@pytest.mark.parametrize("group", ["4711", grp.getgrall()[-1].gr_name])
def test_group_is_set_on_a_new_directory(tmp_path: Path, group: str) -> None:
    settings = config.load(
        {"HICACHE_OBS_STATE_DIR": str(tmp_path / "state"), "HICACHE_OBS_STATE_GROUP": group}
    )
    directory = runs.choose_state_dir(settings)
    expected = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    assert directory.stat().st_gid == expected
    assert faults.take_unreported() == []


@pytest.mark.parametrize("group", ["no-such-group", "99999999999", "4294967296", "²", "\udcff"])
def test_a_bad_group_is_a_counted_fault(tmp_path: Path, group: str) -> None:
    settings = config.load(
        {"HICACHE_OBS_STATE_DIR": str(tmp_path / "state"), "HICACHE_OBS_STATE_GROUP": group}
    )
    assert runs.choose_state_dir(settings).is_dir()
    ((where, number, text),) = faults.take_unreported()
    assert (where, number) == ("state_group", 1)
    assert "HICACHE_OBS_STATE_GROUP" in text
    assert repr(group) in text
