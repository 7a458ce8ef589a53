"""``deploy/systemd``: what systemd's own tools say of the unit, its user and its directory."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNIT = HERE / "hicache-obs-exporter.service"
Program = Callable[[str, str], str]


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_unit_is_read_without_a_word(program: Program, tmp_path: Path) -> None:
    """A misspelt key is one; the program that it starts has to be there."""
    analyze = program("systemd-analyze", "systemd")
    there = tmp_path / "hicache-obs"
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    text = UNIT.read_text().replace("/opt/hicache-obs/bin/hicache-obs", str(there))
    for name, content in (("right", text), ("wrong", text.replace("PrivateTmp", "PrivateTemp"))):
        (tmp_path / f"{name}.service").write_text(content)
    assert run(analyze, "verify", tmp_path / "right.service") == ""
    assert "PrivateTemp" in run(analyze, "verify", tmp_path / "wrong.service")


def test_its_exposure_is_what_the_page_says(program: Program) -> None:
    analyze = program("systemd-analyze", "systemd")
    if not run(analyze, "--version").startswith("systemd 252"):
        pytest.skip("another release of systemd weighs other things")
    told = re.search(
        r"<!-- exposure -->([\d.]+) of 10<!-- end -->", (HERE / "README.md").read_text()
    )
    assert told
    limit = str(round(float(told[1]) * 10))
    command = (analyze, "security", "--offline=true", f"--threshold={limit}", UNIT)
    assert f"{UNIT.name}: {told[1]} " in run(*command)


def test_its_user_and_directory_are_made(program: Program, tmp_path: Path) -> None:
    """By systemd's own tools, in a root of their own."""
    if os.geteuid() != 0:
        pytest.skip("only root makes users and gives directories away")
    for name in ("etc", "var/lib"):
        (tmp_path / name).mkdir(parents=True)
    sysusers = program("systemd-sysusers", "systemd")
    run(sysusers, f"--root={tmp_path}", HERE / "hicache-obs.sysusers.conf")
    user = re.search(r"^hicache-obs:x:(\d+):(\d+):", (tmp_path / "etc/passwd").read_text(), re.M)
    assert user
    tmpfiles = program("systemd-tmpfiles", "systemd")
    run(tmpfiles, "--create", f"--root={tmp_path}", HERE / "hicache-obs.tmpfiles.conf")
    made = (tmp_path / "var/lib/hicache-obs").stat()
    assert (made.st_uid, made.st_gid) == (0, int(user[2]))
    assert stat.S_IMODE(made.st_mode) == 0o2770
    text = UNIT.read_text()
    assert "User=hicache-obs\nGroup=hicache-obs\n" in text
    assert "ReadWritePaths=/var/lib/hicache-obs\n" in text
