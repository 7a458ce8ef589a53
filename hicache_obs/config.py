"""Every environment variable, parsed once, with its default and its meaning.

SGLang starts its own processes, so flags cannot reach them: the plug-in is configured by
``HICACHE_OBS_*`` only. A bad value never stops SGLang: the default is used, one line says so,
and the fault is counted.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "HICACHE_OBS_"
SYSTEM_STATE_DIR = Path("/var/lib/hicache-obs")


@dataclass(frozen=True)
class Setting:
    """One variable: its name without the prefix, default, parser and meaning."""

    name: str
    default: str
    parse: Callable[[str], Any]
    meaning: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name


@dataclass(frozen=True)
class Config:
    """The settings of one process.

    ``state_dir`` is None when the user named none; ``journal.choose_state_dir`` then decides.
    ``problems`` holds one readable line for each bad or unknown variable.
    """

    enabled: bool
    draft_fix: str
    state_dir: Path | None
    state_group: str
    journal_max_bytes: int
    prometheus: str
    log_level: str
    problems: tuple[str, ...] = ()


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            raise ValueError(f"use one of {', '.join(allowed)}")
        return value

    return parse


def _switch(text: str) -> bool:
    value = text.strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    raise ValueError("use 1 or 0")


_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _size(text: str) -> int:
    value = text.strip().lower()
    digits = value.rstrip("kmgib ")
    unit = value[len(digits) :].strip()
    readable = digits.isascii() and digits.isdigit() and len(digits) <= 18
    if not readable or unit not in _UNITS or int(digits) == 0:
        raise ValueError("use a number of bytes above 0, such as 67108864 or 64MiB")
    return int(digits) * _UNITS[unit]


def _directory(text: str) -> Path | None:
    if not text:
        return None
    try:
        path = Path(text).expanduser()
    except (RuntimeError, UnicodeError) as error:
        raise ValueError(f"use an absolute path: {error}") from None
    if not path.is_absolute() or "\0" in text:
        raise ValueError("use an absolute path")
    return path


SETTINGS = (
    Setting("ENABLED", "1", _switch, "`0`: no hook, no cost"),
    Setting(
        "DRAFT_FIX",
        "auto",
        _choice("auto", "always", "off"),
        "`auto`: give the draft host pool the target's allocator type where the installed SGLang "
        "does not and registers the draft; `always`: also where it never registers it (0.5.11, "
        "0.5.12); `off`",
    ),
    Setting(
        "STATE_DIR",
        "",
        _directory,
        "directory of the journals; unset: `/var/lib/hicache-obs` if writable, else "
        "`$XDG_STATE_HOME/hicache-obs` (created 0770, files 0640)",
    ),
    Setting(
        "STATE_GROUP",
        "",
        str.strip,
        "group (name or number) of directory and files; unset: the process's group",
    ),
    Setting(
        "JOURNAL_MAX_BYTES",
        "64MiB",
        _size,
        "most bytes one run writes, and most that dead runs keep; at most 256 dead runs stay",
    ),
    Setting(
        "PROMETHEUS",
        "auto",
        _choice("auto", "off"),
        "`auto`: into SGLang's own `/metrics` when SGLang's metrics are on; `off`",
    ),
    Setting(
        "LOG_LEVEL",
        "warning",
        _choice("debug", "info", "warning", "error"),
        "level of the `hicache_obs` logger",
    ),
)


def load(environ: Mapping[str, str] | None = None) -> Config:
    """Read ``HICACHE_OBS_*`` from *environ* (default: ``os.environ``). Never raises."""
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        text = environ.get(setting.variable) or setting.default
        try:
            values[setting.name.lower()] = setting.parse(text)
        except ValueError as error:
            problems.append(
                f"{setting.variable}={text[:80]!r} is not usable ({error}); "
                f"using the default {setting.default!r}"
            )
            values[setting.name.lower()] = setting.parse(setting.default)
    known = [setting.variable for setting in SETTINGS]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
            problems.append(f"{name} is not a setting of hicache-obs and is ignored{hint}")
    return Config(**values, problems=tuple(problems))
