"""Runs on disk: where journals live, how a run is named, and whether it is alive.

A run is one start of one worker process. It owns two files in the state directory:
``<run>.jsonl``, its journal, and ``<run>.alive``, on which it holds a POSIX record lock for as
long as it lives. The kernel frees the lock on any death; pid and time are never used to decide.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import re
import secrets
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from hicache_obs import faults
from hicache_obs.config import SYSTEM_STATE_DIR, Config

MAX_DEAD_RUNS = 256
_NAME = re.compile(r"(?P<boot>[0-9a-f]{1,32})-(?P<ns>\d{1,20})-(?P<pid>\d{1,10})-[0-9a-f]{8}")
_FLOCK = "hhqqi4x"  # struct flock on Linux x86_64 and aarch64: type, whence, start, len, pid
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "glusterfs", "9p"}


@dataclass(frozen=True, order=True)
class RunName:
    """Boot id, start in nanoseconds since the epoch, and pid of a run, as its name tells."""

    started_ns: int
    boot: str
    pid: int
    text: str

    @classmethod
    def new(cls) -> RunName:
        boot, ns, pid = boot_id(), time.time_ns(), os.getpid()
        return cls(ns, boot, pid, f"{boot}-{ns}-{pid}-{secrets.token_hex(4)}")

    @classmethod
    def parse(cls, text: str) -> RunName | None:
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        return cls(int(match["ns"]), match["boot"], int(match["pid"]), text)


def boot_id() -> str:
    """The kernel's boot id without dashes, or "0" where the kernel does not tell."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except (OSError, ValueError):
        return "0"
    return text.strip().replace("-", "")[:32] or "0"


def launch() -> str:
    """The server start that this worker belongs to: its parent's pid and start in clock ticks
    (/proc/<pid>/stat, field 22). All ranks of a start have it in common; "" if not told."""
    parent = os.getppid()
    try:
        text = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace")
        return f"{parent}-{text.rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return ""


def journal_path(directory: Path, run: str) -> Path:
    return directory / f"{run}.jsonl"


def alive_path(directory: Path, run: str) -> Path:
    return directory / f"{run}.alive"


def hold_alive_lock(directory: Path, run: str) -> int:
    """Create and lock ``<run>.alive``; returns the descriptor, which must stay open.

    The file is locked under another name first, so that nobody ever sees it unlocked while the
    run lives. Closing any other descriptor of the file in this process would free the lock.
    """
    hidden = directory / f".{run}.alive"
    fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        os.rename(hidden, alive_path(directory, run))
    except OSError:
        os.close(fd)
        hidden.unlink(missing_ok=True)
        raise
    return fd


def open_file(path: Path) -> int:
    """Open a file of a journal directory to read it; returns the descriptor.

    All members of the directory's group may write there, and whoever reads may be root: a link
    is not followed, and a pipe, which would hold the reader, is none.

    Raises:
        OSError: it is not there, may not be read, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def is_alive(directory: Path, run: str) -> bool:
    """Whether another process holds the run's lock. Never call it for the own run.

    A lock file that this user may not read, or that is none, counts as held: what cannot be told
    is left alone.
    """
    try:
        fd = open_file(alive_path(directory, run))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL):
            return True
        raise
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(fd)


def list_runs(directory: Path) -> list[RunName]:
    """All runs with a journal or a lock file in *directory*, oldest first."""
    names = {entry.name.rsplit(".", 1)[0] for entry in os.scandir(directory) if _is_ours(entry)}
    return sorted(name for name in map(RunName.parse, names) if name is not None)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith((".jsonl", ".alive"))


def remove_old_dead_runs(directory: Path, own: str, max_bytes: int) -> list[str]:
    """Remove the oldest dead runs beyond ``MAX_DEAD_RUNS`` or beyond *max_bytes* in all.

    Returns the names removed. Runs that are alive, and the own one, are never touched.
    """
    kept_bytes, kept, removed = 0, 0, []
    for run in reversed(list_runs(directory)):
        if run.text == own or is_alive(directory, run.text):
            continue
        path = journal_path(directory, run.text)
        kept, kept_bytes = kept + 1, kept_bytes + _size(path)
        if kept <= MAX_DEAD_RUNS and kept_bytes <= max_bytes:
            continue
        for gone in (path, alive_path(directory, run.text)):
            gone.unlink(missing_ok=True)
        removed.append(run.text)
    return removed


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def choose_state_dir(config: Config) -> Path:
    """Create (0770) and return the state directory.

    The setting, else ``/var/lib/hicache-obs`` where it can be written, else the user's XDG
    state directory with one warning that names both.

    Raises:
        OSError: no directory can be written.
    """
    if config.state_dir is not None:
        return _writable(config.state_dir, config)
    try:
        return _writable(SYSTEM_STATE_DIR, config)
    except OSError as error:
        fallback = _writable(user_state_dir(), config)
        faults.logger.warning(
            "hicache-obs: %s is not writable (%s); journals go to %s. Set HICACHE_OBS_STATE_DIR "
            "to a directory that the exporter reads too.",
            SYSTEM_STATE_DIR,
            error.strerror,
            fallback,
        )
        return fallback


def user_state_dir() -> Path:
    """Where a user without ``/var/lib/hicache-obs`` writes.

    Raises:
        FileNotFoundError: the user has no home directory.
    """
    base = os.environ.get("XDG_STATE_HOME")
    if base:
        return Path(base) / "hicache-obs"
    try:
        return Path.home() / ".local" / "state" / "hicache-obs"
    except RuntimeError as error:
        raise FileNotFoundError(2, f"no home directory: {error}") from None


def _writable(directory: Path, config: Config) -> Path:
    if not directory.exists():
        directory.mkdir(mode=0o770, parents=True, exist_ok=True)
        directory.chmod(0o770)
        set_group(directory, config)
    if not directory.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(directory))
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(directory))
    if _filesystem(directory) in _NETWORK:
        faults.logger.warning(
            "hicache-obs: %s is on a network file system: locks and writes may stall or lie; "
            "use a local directory for HICACHE_OBS_STATE_DIR",
            directory,
        )
    return directory


def set_group(path: Path, config: Config) -> None:
    """Give *path* the configured group; a group that cannot be set is a counted fault."""
    if not config.state_group:
        return
    try:
        group = config.state_group
        number = group.isascii() and group.isdigit()
        gid = int(group) if number else grp.getgrnam(group).gr_gid
        os.chown(path, -1, gid)
    except (OSError, KeyError, ValueError, OverflowError) as error:
        faults.count(
            "state_group",
            f"HICACHE_OBS_STATE_GROUP={config.state_group!r} cannot be set ({error}); "
            "name a group of this process",
        )


def _filesystem(directory: Path) -> str:
    """Type of the file system of *directory* by /proc/self/mounts, "" if not told."""
    best, kind = "", ""
    try:
        real = str(directory.resolve())
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, point, found = line.split(" ")[:3]
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, found
    except (OSError, ValueError):
        return ""
    return kind.removeprefix("fuse.")
