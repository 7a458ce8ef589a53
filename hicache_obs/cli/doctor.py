"""``hicache-obs doctor``: a look at the installed SGLang before a server is started."""

from __future__ import annotations

import grp
import json
import os
import pwd
import resource
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from hicache_obs import config, draft_builder
from hicache_obs.cli.installed import (
    Installed,
    find_sglang,
    has_target,
    mooncake_has_allocator,
    mooncake_release,
)
from hicache_obs.exporter.page import size
from hicache_obs.hooks import limits
from hicache_obs.sglang_targets import RELEASES, release_key, targets_for

OK, PROBLEM, NOTE, UNSEEN = "ok", "problem", "note", "unseen"
_HALF_SEGMENT = ("0.5.21", "0.5.23")


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's answer: what was looked at, how it is, and what to do."""

    check: str
    state: str
    text: str


@click.command()
@click.option(
    "--sglang-path",
    type=click.Path(path_type=Path),
    help="Folder that holds sglang/ (default: the SGLang that this Python imports).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(sglang_path: Path | None, as_json: bool) -> None:
    """Look before a server is started: known defects of the installed SGLang, hook points, limits,
    the state directory and who can read it.

    Ends with 0 if all is well, 1 if there are problems, 2 if SGLang could not be looked at (the
    rest is told all the same). Nothing of SGLang or Mooncake is imported.

    Example: hicache-obs doctor --json
    """
    settings = config.load()
    findings = [*_sglang(sglang_path, settings), *surroundings(settings)]
    if as_json:
        click.echo(json.dumps({"findings": [asdict(f) for f in findings]}, indent=2))
    else:
        _print(findings)
    states = {finding.state for finding in findings}
    sys.exit(2 if UNSEEN in states else int(PROBLEM in states))


def _sglang(path: Path | None, settings: config.Config) -> list[Finding]:
    try:
        return list(examine(find_sglang(path), settings))
    except (OSError, SyntaxError) as error:
        return [Finding("SGLang", UNSEEN, str(error))]


def examine(installed: Installed, settings: config.Config) -> Iterator[Finding]:
    """All findings about an SGLang on disk."""
    yield _release(installed)
    yield _draft_builder(installed, settings)
    yield _half_segment(installed)
    yield Finding("asymmetric drafts", NOTE, draft_builder.NOT_COVERED)
    yield _hook_points(installed)


def surroundings(settings: config.Config) -> Iterator[Finding]:
    """All findings about this process's libraries, limits, directory and settings."""
    yield _mooncake()
    yield _memory()
    yield _locked_memory()
    yield _state_dir(settings)
    for problem in settings.problems:
        yield Finding("settings", PROBLEM, problem)


def _release(installed: Installed) -> Finding:
    if installed.release in RELEASES:
        return Finding("SGLang", OK, f"{installed.release}, tested")
    text = f"{installed.release} is not among the tested releases ({RELEASES[0]} to {RELEASES[-1]})"
    return Finding("SGLang", NOTE, text)


def _draft_builder(installed: Installed, settings: config.Config) -> Finding:
    found = draft_builder.recognise_installed(installed.package)
    state = draft_builder.state_of(found, settings.draft_fix)
    texts = {
        "upstream": (OK, f"fixed upstream: {found.reason}"),
        "pending": (
            OK,
            f"affected ({found.reason}); the fixed builder is applied when the server starts",
        ),
        "latent": (
            NOTE,
            f"{found.reason}, but this release never registers the draft: harmless "
            "(HICACHE_OBS_DRAFT_FIX=always fixes it too)",
        ),
        "off": (
            PROBLEM if found.registers else NOTE,
            f"affected ({found.reason}) and HICACHE_OBS_DRAFT_FIX=off: a draft registered with a "
            "standalone Mooncake client kills the server; set HICACHE_OBS_DRAFT_FIX=auto",
        ),
        "unrecognised": (
            PROBLEM,
            f"not recognised ({found.reason}), so it is left alone; compare the draft pool's "
            "allocator with the target's in hicache_host_pool_info",
        ),
    }
    how, text = texts[state]
    return Finding("draft builder", how, text)


def _half_segment(installed: Installed) -> Finding:
    first, last = (release_key(release) for release in _HALF_SEGMENT)
    try:
        affected = first <= release_key(installed.release) <= last
    except ValueError:
        affected = False
    if affected:
        return Finding(
            "MHA target",
            NOTE,
            f"{installed.release} registers half a segment of an MHA target, which a standalone "
            "Mooncake client refuses (segment_size_mismatch): use an embedded store "
            "(standalone_storage false) or SGLang 0.5.20 with such a model",
        )
    return Finding("MHA target", OK, "this release registers whole segments")


def _hook_points(installed: Installed) -> Finding:
    targets = [t for t in targets_for(installed.release) if not t.of_vendor]
    missing = [target.path for target in targets if not has_target(installed, target)]
    if missing:
        text = f"{len(missing)} of {len(targets)} are not in this SGLang: {', '.join(missing)}"
        return Finding("hook points", PROBLEM, text)
    return Finding("hook points", OK, f"all {len(targets)} are there")


def _mooncake() -> Finding:
    release = mooncake_release()
    if not release:
        return Finding("Mooncake", NOTE, "not installed for this Python")
    if mooncake_has_allocator(release):
        return Finding("Mooncake", OK, release)
    return Finding(
        "Mooncake",
        PROBLEM,
        f"{release} has no MooncakeHostMemAllocator: SGLang falls back to its default allocator, "
        "and a standalone store refuses it; install 0.3.8.post1 or later",
    )


def _memory() -> Finding:
    limit = limits.nearest()
    if not limit.limit_source:
        return Finding("memory", NOTE, "no limit can be read here")
    return Finding(
        "memory",
        OK,
        f"{size(limit.free)} left of {size(limit.limit_bytes)} ({limit.limit_source}): all host "
        "pools of all ranks, target and draft, come out of it, and SGLang keeps 10 GB back",
    )


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("locked memory", OK, "unlimited")
    text = f"ulimit -l is {size(soft)}: registration with an RDMA device needs it unlimited"
    return Finding("locked memory", NOTE, text)


def _readers(directory: Path) -> str:
    """Who may read the journals in an existing directory (files are 0640)."""
    status = directory.stat()
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    mode = stat.S_IMODE(status.st_mode)
    text = f"{mode:04o} {owner}:{group}, so an exporter reads it as {owner}"
    return f"{text} or in group {group}" if mode & 0o050 == 0o050 else text


def _state_dir(settings: config.Config) -> Finding:
    directory = settings.state_dir or config.SYSTEM_STATE_DIR
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        if existing != directory:
            return Finding("state directory", OK, f"{directory}, will be created (0770)")
        return Finding("state directory", OK, f"{directory}, writable; {_readers(directory)}")
    state = NOTE if settings.state_dir is None else PROBLEM
    return Finding(
        "state directory",
        state,
        f"{directory} cannot be written by this user; set HICACHE_OBS_STATE_DIR to a local "
        "directory that SGLang's workers can write",
    )


def _print(findings: list[Finding]) -> None:
    console = Console()
    if not console.is_terminal:
        for finding in findings:
            click.echo(f"{finding.state}\t{finding.check}\t{finding.text}")
        return
    colours = {OK: "green", PROBLEM: "red", NOTE: "yellow", UNSEEN: "red"}
    table = Table("", "check", "finding", box=None, padding=(0, 1))
    for finding in findings:
        state = f"[{colours[finding.state]}]{finding.state}[/]"
        table.add_row(state, finding.check, finding.text)
    console.print(table)
