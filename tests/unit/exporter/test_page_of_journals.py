"""The status page and ``status``: what is shown, how it is folded, what is hidden."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from journals import (
    BUILT,
    ENTERED,
    MISMATCH,
    POOL_REGISTERED,
    READY,
    REFUSED,
    REGISTERED,
    THE_BUG,
    Worker,
)

from hicache_obs.exporter import page
from hicache_obs.exporter.host import Host
from hicache_obs.exporter.view import Snapshot

GIB = 1 << 30


def text(host: Host, *, show_messages: bool = False) -> str:
    """The words of the page, tags and runs of spaces taken out."""
    found = page.render(host.view.snapshot, show_messages=show_messages)
    found = re.sub(r"<style>.*?</style>", "", found, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found)).split())


def test_last_words(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    versions = {"sglang_version": "0.5.14", "mooncake_version": "0.3.13.post1"}
    worker(**versions, torch_version="2.9.1").write(*THE_BUG).die()
    words = text(host(), show_messages=True)
    for told in (
        "1 failing",
        "registration of the draft host pool failed: foreign_buffer",
        "Do: give the pool Mooncake's allocator",
        "rank tp0 pp0",
        "role draft",
        "pool draft",
        "allocator default",
        "bytes 1.062 MiB (1114112)",
        "code -1",
        "cause foreign_buffer",
        "store standalone",
        "versions SGLang 0.5.14, Mooncake 0.3.13.post1, torch 2.9.1",
        "RuntimeError: Failed to register buffer to Mooncake Store, error code: -1",
        "has default where mooncake is needed (draft_differs_from_target)",
    ):
        assert told in words


def test_exception_texts_are_hidden_and_it_says_how_to_see_them(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(*THE_BUG).die()
    words = text(host())
    assert "error code" not in words
    assert "RuntimeError" not in words
    assert "hicache-obs status on the host shows it, or --web.show-messages" in words


def test_ranks_that_fail_alike_are_one_block(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    for rank in range(8):
        events = THE_BUG if rank != 3 else (BUILT,)
        worker(tp=str(rank), launch="one").write(*events).die()
    words = text(host())
    assert words.count("registration of the draft host pool failed") == 1
    assert "rank tp0 pp0, tp1 pp0, tp2 pp0, tp4 pp0" in words
    assert "Ended because another rank had failed: tp3 pp0" in words


def test_eight_ranks_are_a_span(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    for rank in range(8):
        worker(tp=str(rank), launch="one").write(*THE_BUG).die()
    assert "rank tp0 to tp7 pp0 role" in text(host())


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        (["tp0 pp0", "tp1 pp0"], "tp0 pp0, tp1 pp0"),
        (["tp0", "tp1", "tp2"], "tp0 to tp2"),
        (["tp1", "tp2", "tp3"], "tp1 to tp3"),
        (["tp0 pp0", "tp1 pp0", "tp2 pp1"], "tp0 pp0, tp1 pp0, tp2 pp1"),
        (["tp0", "tp2", "tp3"], "tp0, tp2, tp3"),
        (["", ""], ""),
        ([], ""),
    ],
)
def test_spans(ranks: list[str], told: str) -> None:
    assert page.spans(ranks) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (64 * GIB, "64 GiB"),
        (2000 * 1024 * GIB, "2000 TiB"),
    ],
)
def test_sizes(count: int, told: str) -> None:
    assert page.size(count) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s ago"),
        (89, "89 s ago"),
        (90, "1 min ago"),
        (5400, "1 h ago"),
        (172_800, "2 days ago"),
        (-0.5, "0 s ago"),
        (-3600, "in the future by this clock"),
    ],
)
def test_ages(seconds: float, told: str) -> None:
    assert page.age(1000.0, 1000.0 + seconds) == told


@pytest.mark.parametrize("time", [0.0, -5.0, 1e300, float("nan")])
def test_impossible_times_are_not_shown(time: float) -> None:
    assert page.when(time) == ""


def test_calls_in_progress(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    worker().write(BUILT, replace(ENTERED, since=1_700_000_000.0))
    one = host(clock=lambda: 1_700_000_240.0)
    assert "register_buffer draft draft 1.062 MiB 2023-11-14 22:13:20Z (4 min ago)" in text(one)


def test_pools_and_whether_they_are_registered(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    fallback = replace(BUILT, role="target", pool="kv", requested_allocator="mooncake")
    free = replace(BUILT, role="target", pool="swa", expected=None, allocator="shm")
    worker().write(
        BUILT,
        fallback,
        replace(free, requested_allocator="shm"),
        REGISTERED,
        POOL_REGISTERED,
        READY,
    )
    words = text(host())
    assert "No server is failing." in words
    assert "up draft draft default 1.062 MiB yes" in words
    assert "up target kv default (asked for mooncake) 1.062 MiB no" in words
    assert "up target swa shm 1.062 MiB not needed" in words


def test_a_harmful_mismatch_of_a_server_that_stands(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    worker().write(BUILT, MISMATCH)
    words = text(host())
    assert "Wrong allocator" in words
    assert "No server is failing." not in words


def test_a_failure_that_a_success_mended_is_not_shown(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    mended = replace(REGISTERED, mended=(("standalone", "default", "-1", "foreign_buffer"),))
    worker().write(BUILT, REFUSED, mended, READY)
    words = text(host())
    assert "No server is failing." in words
    assert "foreign_buffer" not in words


def test_nothing_seen_says_what_to_check(host: Callable[..., Host]) -> None:
    words = text(host())
    assert "No server was seen yet" in words
    assert "hicache-obs doctor" in words


def test_a_directory_that_is_not_there(host: Callable[..., Host], tmp_path: Path) -> None:
    words = text(host(tmp_path / "no"))
    assert f"{tmp_path}/no waiting : it does not exist yet" in words


def test_problems_of_ours(worker: Callable[..., Worker], host: Callable[..., Host]) -> None:
    run = worker()
    run.path.write_bytes(b"nonsense\n")
    words = text(host())
    assert "Problems of the exporter itself: 1" in words
    assert "a line was skipped: not JSON" in words


def test_nothing_from_a_journal_is_markup(
    worker: Callable[..., Worker], host: Callable[..., Host]
) -> None:
    evil = "<script>alert(1)</script>"
    worker(model_name=evil, port=evil).write(
        replace(BUILT, role=evil, pool=evil, allocator=evil),
        replace(MISMATCH, role=evil, expected=evil),
        replace(REFUSED, error=evil, role=evil, code=evil, cause=evil),
    ).die()
    found = page.render(host().view.snapshot, show_messages=True)
    assert "<script" not in found
    assert evil in html.unescape(found)


@pytest.mark.parametrize(
    ("events", "title"),
    [
        (THE_BUG, "1 failing · hicache-obs"),
        ((READY,), "all well · hicache-obs"),
    ],
)
def test_the_title_says_the_state(
    events: tuple[object, ...],
    title: str,
    worker: Callable[..., Worker],
    host: Callable[..., Host],
) -> None:
    worker().write(*events)  # type: ignore[arg-type]  # events
    assert f"<title>{title}</title>" in page.render(host().view.snapshot, show_messages=False)


def test_an_empty_snapshot() -> None:
    empty = Snapshot(0.0, (), (), ())
    assert "no server seen · hicache-obs" in page.render(empty, show_messages=False)
