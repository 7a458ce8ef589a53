"""docs/hooks.md says of each release what the hook tables say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from hicache_obs.sglang_backends import REGISTERING
from hicache_obs.sglang_targets import RELEASES, TARGETS, targets_for

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hook_tables", DOCS / "hook_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (RELEASES, "all"),
        (RELEASES[2:], "0.5.13+"),
        (RELEASES[-1:], "0.5.23+"),
        (RELEASES[:7], "to 0.5.18"),
        (RELEASES[2:7], "0.5.13 to 0.5.18"),
        (RELEASES[1:2], "0.5.12"),
        ((RELEASES[0], *RELEASES[3:5]), "0.5.11, 0.5.14 to 0.5.15.post1"),
    ],
)
def test_releases_in_few_words(tables: ModuleType, seen: tuple[str, ...], words: str) -> None:
    assert tables.spans(reversed(seen)) == words


def test_a_row_of_no_tested_release_is_refused(tables: ModuleType) -> None:
    with pytest.raises(ValueError, match="no tested release"):
        tables.spans(())


def test_every_hook_point_has_words_and_no_words_are_left_over(tables: ModuleType) -> None:
    assert {target.point for target in TARGETS} == {*tables.LEARNT, "host_pool", "pool_destroy"}


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_has_the_rows_of_its_hooks(tables: ModuleType, release: str) -> None:
    """Read as a reader would: from the words back to the release."""
    told = set()
    for line in (*tables.points().splitlines()[2:], *tables.pools().splitlines()[2:]):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        of_pool = len(cells) > 4
        modules, whole = (cells[2], cells[3]) if of_pool else (cells[0], cells[3])
        names = [(f"{cells[0].strip('`')}.__init__", whole), (cells[1].strip("`"), whole)]
        names = names[:1] if of_pool else names[1:]
        if of_pool and cells[4]:
            names.append((f"{cells[0].strip('`')}.destroy", cells[4]))
        for module, words in re.findall(r"`([^`]+)`(?: \(([^)]+)\))?", modules):
            for name, span in names:
                if _holds(words or whole, release) and _holds(span, release):
                    told.add((module, name))
    wanted = {(t.module.removeprefix("sglang.srt."), t.name) for t in targets_for(release)}
    assert told == wanted


def _holds(words: str, release: str) -> bool:
    at = RELEASES.index(release)
    if words == "all":
        return True
    if words.endswith("+"):
        return at >= RELEASES.index(words[:-1])
    first, to, last = words.rpartition("to ")
    if not to:
        return words == release
    return (not first or at >= RELEASES.index(first.strip())) and at <= RELEASES.index(last)


def test_every_backend_has_its_releases(tables: ModuleType) -> None:
    rows = tables.backends().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(REGISTERING)
    assert "| `mori` | 0.5.15.post1+ | 0.5.18+ |" in tables.backends()
