"""The status page from snapshots built by hand: what is folded, hidden, and never claimed."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from servers import GIB, MISMATCH, NOW, REFUSED, TARGET, a_night, failing, rank, server

from hicache_obs import causes
from hicache_obs.exporter import page
from hicache_obs.exporter.fold import Failure
from hicache_obs.exporter.view import (
    FAILING,
    STARTING,
    STOPPED,
    UP,
    RankView,
    ServerView,
    Snapshot,
)
from hicache_obs.rules import RUNBOOKS

READ = (("/var/lib/hicache-obs", "read", ""),)
UNREADABLE = (("/var/lib/hicache-obs", "unreadable", "Permission denied"),)
WAITING = (("/var/lib/hicache-obs", "waiting", "it does not exist yet"),)
BUDGET = REFUSED._replace(stage="allocation", code="", cause="budget", error_type="ValueError")


def of(*servers: ServerView, directories: tuple[tuple[str, str, str], ...] = READ) -> Snapshot:
    return Snapshot(NOW, servers, directories, ())


def with_failure(number: int, failure: Failure, **given: object) -> RankView:
    return rank(number, FAILING, failures=(failure,), **given)


def title(snapshot: Snapshot) -> str:
    found = re.search(r"<title>(.*?) · hicache-obs</title>", page.render(snapshot, **SHOWN))
    assert found is not None
    return found[1]


def words(snapshot: Snapshot, *, show_messages: bool = True, now: float = NOW) -> str:
    """The words of the page's body, tags and runs of spaces taken out."""
    found = page.render(snapshot, show_messages=show_messages, now=now).partition("<body>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found)).split())


SHOWN = {"show_messages": True, "now": NOW}


def test_what_a_person_wants_comes_in_its_order() -> None:
    told = words(a_night())
    places = [
        told.index(part)
        for part in (
            "1 failing 1 starting 1 up",
            "registration of the draft host pool failed: foreign_buffer",
            causes.explain("foreign_buffer").action,
            "Native calls in progress",
            "Host pools",
            "Journals",
        )
    ]
    assert places == sorted(places)


def test_one_failure_that_every_rank_words_with_its_own_numbers_is_one_block() -> None:
    ranks = (with_failure(n, BUDGET._replace(error=f"only {50 - n} GB free")) for n in range(8))
    told = words(of(server(30000, FAILING, *ranks)))
    assert told.count("host pool failed: budget") == 1
    assert "rank tp0 to tp7 pp0" in told
    assert "tp0 pp0: ValueError: only 50 GB free" in told
    assert "only 47 GB free" not in told
    assert "and 5 more that differ" in told


def test_one_text_of_all_ranks_is_told_without_their_names() -> None:
    one = page.failing(server(30000, FAILING, *(failing(number) for number in range(3))))
    text = "RuntimeError: Failed to register buffer to Mooncake Store, error code: -1"
    assert one.told[0].texts == (("tp0 to tp2 pp0", text),)
    assert f"torch 2.9.1 {text} wrong allocator" in words(of(one.server))


@pytest.mark.parametrize(
    "change", [{"bytes": 2 * GIB}, {"cause": "pin"}, {"code": "-600"}, {"role": "target"}]
)
def test_failures_that_differ_in_a_fact_stay_apart(change: dict[str, object]) -> None:
    other = REFUSED._replace(**change)  # type: ignore[arg-type]  # one field of its type
    one = page.failing(server(1, FAILING, with_failure(0, REFUSED), with_failure(1, other)))
    assert [told.ranks for told in one.told] == ["tp0 pp0", "tp1 pp0"]


def test_other_versions_are_another_block() -> None:
    other = with_failure(1, REFUSED, sglang_version="0.5.13")
    one = page.failing(server(1, FAILING, with_failure(0, REFUSED), other))
    assert len(one.told) == 2


def test_the_time_told_is_the_first_that_is_known() -> None:
    times = (0.0, NOW - 10, NOW - 20)
    ranks = (with_failure(n, REFUSED._replace(time=time)) for n, time in enumerate(times))
    assert page.failing(server(1, FAILING, *ranks)).told[0].time == NOW - 20


def test_hidden_texts_are_nowhere_in_the_page() -> None:
    secret = BUDGET._replace(error="secret-host", error_type="SecretError")
    found = page.render(
        of(server(1, FAILING, with_failure(0, secret))), show_messages=False, now=NOW
    )
    assert "ecret" not in found
    assert "hicache-obs status" in found
    assert "--web.show-messages" in found


def test_without_a_text_nothing_is_said_to_be_hidden() -> None:
    silent = REFUSED._replace(error="", error_type="")
    shown = of(server(1, FAILING, with_failure(0, silent)))
    assert "--web.show-messages" not in words(shown, show_messages=False)


def test_a_peer_is_one_line_and_no_failure_of_its_own() -> None:
    peers = (rank(number, FAILING, start_cause="peer", pools=()) for number in range(1, 8))
    told = words(of(server(1, FAILING, failing(0), *peers)))
    assert told.count("host pool failed") == 1
    assert "Ended because another rank had failed: tp1 to tp7 pp0" in told


def test_a_wrong_allocator_is_said_once_with_what_to_do_and_is_not_all_well() -> None:
    ranks = (rank(number, STARTING, mismatches=(MISMATCH,)) for number in range(8))
    shown = of(server(1, STARTING, *ranks))
    told = words(shown)
    assert title(shown) == "1 with a wrong allocator"
    assert told.count("has default where mooncake is needed") == 1
    assert "tp0 to tp7 pp0: the draft pool" in told
    assert "A standalone store will refuse it." in told
    assert f"Do: {causes.explain('foreign_buffer').action}." in told
    assert "No server is failing" not in told


def test_what_to_do_is_not_said_twice() -> None:
    assert words(of(server(1, FAILING, failing(0)))).count("Do:") == 1


def links(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Names of alerts on the page, each with the address that it leads to."""
    found = re.findall(r'Alert <a href="(.*?)">(\w+)</a>', page.render(snapshot, **SHOWN))
    return [(name, html.unescape(address)) for address, name in found]


def test_a_failure_names_its_alert_and_leads_to_the_runbooks_section_of_its_cause() -> None:
    away = REFUSED._replace(stage="setup", cause="client_unreachable")
    ranks = (with_failure(0, REFUSED), with_failure(1, BUDGET), with_failure(2, away))
    assert links(of(server(1, FAILING, *ranks))) == [
        (name, f"{RUNBOOKS}/{name}.md#{cause}")
        for name, cause in (
            ("HiCacheRegistrationFailed", "foreign_buffer"),
            ("HiCacheHostPoolAllocationFailed", "budget"),
            ("HiCacheMooncakeUnreachable", "client_unreachable"),
        )
    ]


def test_a_wrong_allocator_leads_to_the_runbook_of_its_alert() -> None:
    name = "HiCacheAllocatorMismatch"
    shown = of(server(1, STARTING, rank(0, STARTING, mismatches=(MISMATCH,))))
    assert links(shown) == [(name, f"{RUNBOOKS}/{name}.md")]


@pytest.mark.parametrize(
    ("change", "fragment"),
    [({"cause": ""}, "#exception"), ({"cause": "of\"'#>"}, "#of%22%27%23%3E")],
)
def test_a_runbooks_section_is_one_word(change: dict[str, str], fragment: str) -> None:
    odd = REFUSED._replace(**change)  # type: ignore[arg-type]  # text fields only
    ((_, address),) = links(of(server(1, FAILING, with_failure(0, odd))))
    assert address == f"{RUNBOOKS}/HiCacheRegistrationFailed.md{fragment}"


def test_a_failure_of_no_stage_has_no_alert() -> None:
    assert links(of(server(1, FAILING, with_failure(0, REFUSED._replace(stage=""))))) == []


def test_the_exporter_needs_no_yaml(run_python: Callable[..., str]) -> None:
    told = run_python("import sys, hicache_obs.exporter.web; print('yaml' in sys.modules)")
    assert told == "False\n"


def test_each_reason_of_a_mismatch_has_its_remedy() -> None:
    wanted = MISMATCH._replace(role="target", reason="backend_requires")
    told = words(of(server(1, STARTING, rank(0, STARTING, mismatches=(wanted,)))))
    assert f"Do: {causes.explain('allocator_required').action}." in told


def test_a_harmless_mismatch_alarms_nobody() -> None:
    harmless = rank(0, UP, mismatches=(MISMATCH._replace(harmful=False),))
    shown = of(server(1, UP, harmless))
    assert title(shown) == "all well"
    assert "wrong allocator" not in words(shown).lower()


@pytest.mark.parametrize(
    ("shown", "state", "sentence"),
    [
        (of(server(1, UP, rank(0, UP))), "all well", "No server is failing."),
        (of(server(1, STOPPED, rank(0, STOPPED))), "all stopped", "No server is failing."),
        (
            of(server(1, UP, rank(0, UP)), directories=READ + UNREADABLE),
            "journals not read",
            "1 of 2 journal directories not read: why",
        ),
        (
            of(server(1, UP, rank(0, UP)), directories=READ + WAITING),
            "journals not read",
            "No server is failing, as far as the journals were read.",
        ),
        (of(), "no server seen", "No journal that can be read is here. What to check:"),
        (
            of(directories=WAITING),
            "no server seen",
            "/var/lib/hicache-obs is waiting: it does not exist yet",
        ),
        (
            of(directories=UNREADABLE),
            "journals not read",
            "No journal directory could be read, so nothing is known of any server.",
        ),
    ],
)
def test_the_title_and_the_first_sentence_claim_no_more_than_is_known(
    shown: Snapshot, state: str, sentence: str
) -> None:
    assert title(shown) == state
    assert sentence in words(shown)


def test_no_run_at_all_says_what_to_check() -> None:
    told = words(of())
    for part in ("hicache-obs doctor", "--enable-hierarchical-cache", "the same directory"):
        assert part in told


@pytest.mark.parametrize(("seconds", "old"), [(0, False), (59, False), (61, True)])
def test_a_page_of_an_exporter_that_no_longer_looks_says_so(seconds: int, old: bool) -> None:
    told = words(a_night(), now=NOW + seconds)
    assert ("The exporter has not looked since" in told) is old
    assert f"({page.age(NOW, NOW + seconds)})" in told


def test_problems_are_open_because_a_renewed_page_would_close_them() -> None:
    found = page.render(replace(a_night(), problems=("a line was skipped",)), **SHOWN)
    assert "<details open>" in found


def test_every_server_has_one_id_that_is_one_word() -> None:
    shown = of(
        server(30000, FAILING, failing(0)),
        server(30001, STARTING, rank(0, STARTING, mismatches=(MISMATCH,))),
        server(30002, UP, rank(0, UP)),
        replace(server(0, UP, rank(7, UP)), port=""),
        replace(server(0, UP, rank(8, UP)), port="", host="a b\"<'"),
    )
    found = html.unescape(page.render(shown, **SHOWN))
    for one in shown.servers:
        assert found.count(f'id="{page.anchor(one)}"') == 1
        assert re.fullmatch(r"[\w.:%~-]+", page.anchor(one))
    assert page.anchor(shown.servers[0]) == "server-llm.gpu-node-07:30000"


def test_servers_without_a_port_are_told_apart_by_pid() -> None:
    told = words(of(replace(server(0, UP, rank(7, UP)), port="")))
    assert "gpu-node-07 (pid 4007)" in told


def test_pools_say_their_allocator_and_the_one_asked_for() -> None:
    fallback = TARGET._replace(allocator="default", requested_allocator="mooncake")
    silent = TARGET._replace(pool="swa", requested_allocator="", registered=None)
    told = words(of(server(1, UP, rank(0, UP, pools=(fallback, silent)))))
    assert "target kv default (asked for mooncake) 64 GiB yes" in told
    assert "target swa mooncake 64 GiB not needed" in told


@pytest.mark.parametrize("field", ["model_name", "host", "pod", "namespace", "port"])
def test_nothing_of_a_server_is_markup(field: str) -> None:
    evil = '"><script>alert(1)</script>'
    one = replace(server(1, FAILING, failing(0)), **{"pod": "pod", field: evil})
    found = page.render(of(one), **SHOWN)
    assert "<script" not in found
    assert "&lt;script&gt;" in found


@pytest.mark.parametrize("field", [f for f in Failure._fields if f not in ("time", "bytes")])
def test_nothing_of_a_failure_is_markup(field: str) -> None:
    evil = "</pre><script>alert(1)</script>"
    odd = REFUSED._replace(**{field: evil})
    found = page.render(of(server(1, FAILING, with_failure(0, odd))), **SHOWN)
    assert "<script" not in found
    assert "&lt;script&gt;" in found


def test_a_failure_of_no_known_cause_is_told_as_an_exception() -> None:
    told = words(of(server(1, FAILING, with_failure(0, REFUSED._replace(cause="")))))
    assert "host pool failed: exception" in told
    assert causes.explain("exception").action in told


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([f"tp{t} pp{p}" for p in (0, 1) for t in range(4)], "tp0 to tp3 pp0, tp0 to tp3 pp1"),
        (["tp0 pp0", "tp1 pp0", "tp2 pp0", "tp0 pp1"], "tp0 to tp2 pp0, tp0 pp1"),
        (["tp²", "tp1", "tp2"], "tp², tp1, tp2"),
        (["dp0", "dp1", "dp2"], "dp0, dp1, dp2"),
        (["tp0", "", "tp1"], "tp0, tp1"),
    ],
)
def test_spans(ranks: list[str], told: str) -> None:
    assert page.spans(ranks) == told


def test_a_size_beyond_reason_is_still_a_number() -> None:
    assert page.size(1 << 63) == "8388608 TiB"
