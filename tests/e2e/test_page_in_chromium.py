"""Every kind of status page in a real headless Chromium, as a file: nothing serves it anything."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from preview.chromium import FLAGS
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from servers import MISMATCH, NOW, REFUSED, a_night, crowd, failing, rank, server

from hicache_obs.exporter import page
from hicache_obs.exporter.view import FAILING, STARTING, STOPPED, UP, Snapshot

UNREADABLE = ("/var/lib/" + "hicache" * 20, "unreadable", "Permission denied")
BUDGET = REFUSED._replace(cause="budget", error="only 12.5 GB free: " + "w" * 300)
SNAPSHOTS = {
    "a night": a_night(),
    "a crowd": crowd(),
    "wrong allocator": Snapshot(
        NOW,
        (server(1, STARTING, *(rank(n, STARTING, mismatches=(MISMATCH,)) for n in range(16))),),
        (UNREADABLE,),
        ("a line was skipped",),
    ),
    "long texts": Snapshot(
        NOW,
        (
            server(1, FAILING, *(replace(failing(n), failures=(BUDGET,)) for n in range(16))),
            replace(server(2, STOPPED, rank(0, STOPPED)), port=""),
        ),
        (),
        (),
    ),
    "all well": Snapshot(NOW, (server(1, UP, rank(0, UP)),), (("/var/lib", "read", ""),), ()),
    "nothing": Snapshot(NOW, (), (UNREADABLE,), ("p" * 400,)),
}
CONTRAST = """
const parts = colour => colour.match(/[\\d.]+/g).map(Number);
const light = colour => parts(colour).slice(0, 3).reduce((sum, part, at) => {
  const v = part / 255, linear = v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  return sum + linear * [.2126, .7152, .0722][at] }, 0);
const ground = e => { while (e && parts(getComputedStyle(e).backgroundColor)[3] === 0)
  e = e.parentElement; return e ? getComputedStyle(e).backgroundColor : "rgb(255, 255, 255)" };
return [...document.querySelectorAll("body *")]
  .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
  .map(e => { const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.trim()] })
  .reduce((worst, one) => one[0] < worst[0] ? one : worst);
"""

Show = Callable[..., Chrome]


@pytest.fixture(scope="module")
def chrome(
    tmp_path_factory: pytest.TempPathFactory, program: Callable[[str, str], str]
) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = program("chromium", "chromium")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    service = ChromeService(program("chromedriver", "chromium-driver"))
    one = Chrome(options=options, service=service)
    yield one
    one.quit()


@pytest.fixture
def show(chrome: Chrome, tmp_path: Path) -> Show:
    def shown(
        snapshot: Snapshot,
        *,
        width: int = 360,
        height: int = 800,
        dark: bool = False,
        fragment: str = "",
    ) -> Chrome:
        file = tmp_path / "page.html"
        file.write_text(page.render(snapshot, show_messages=True, now=NOW), encoding="utf-8")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"mobile": width < 500})
        chrome.get("about:blank")  # a fragment alone would not load the page anew
        chrome.get(file.as_uri() + (f"#{fragment}" if fragment else ""))
        return chrome

    return shown


@pytest.mark.parametrize("name", SNAPSHOTS)
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_never_scrolls_sideways(show: Show, name: str, width: int) -> None:
    one = show(SNAPSHOTS[name], width=width)
    assert one.execute_script("return innerWidth") == width
    assert one.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_wide_table_scrolls_in_its_own_box(show: Show) -> None:
    one = show(a_night())
    assert one.execute_script(
        "return [...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
    )


@pytest.mark.parametrize("name", ["a night", "a crowd"])
def test_the_first_failing_server_and_its_remedy_are_above_the_fold(show: Show, name: str) -> None:
    one = show(SNAPSHOTS[name], width=360, height=800)
    for css in (".counts .failing", "article.bad h3", "article.bad .headline", "article.bad .do"):
        top, bottom = one.execute_script(
            "const r = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [r.top, r.bottom]",
            css,
        )
        assert 0 <= top < bottom <= 800, css


@pytest.mark.parametrize("name", SNAPSHOTS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_word_has_contrast(show: Show, name: str, dark: bool) -> None:
    ratio, text = show(SNAPSHOTS[name], dark=dark).execute_script(CONTRAST)
    assert ratio >= 4.5, text[:60]


def test_dark_is_dark_everywhere(show: Show) -> None:
    grounds = show(a_night(), dark=True).execute_script(
        "return ['body', 'article', '.do', '.scroll', '.group'].map("
        "css => getComputedStyle(document.querySelector(css)).backgroundColor)"
    )
    for ground in grounds:
        assert all(int(part) < 64 for part in ground[4:-1].split(",")), ground


def test_the_browser_asks_for_the_page_and_nothing_else(show: Show, chrome: Chrome) -> None:
    chrome.get_log("performance")  # what went before
    show(crowd())
    messages = [json.loads(line["message"])["message"] for line in chrome.get_log("performance")]
    asked = {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }
    assert {url.rpartition("/")[2] for url in asked} == {"page.html"}
    assert chrome.execute_script("return document.scripts.length") == 0


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_link_finds_every_server(show: Show, name: str) -> None:
    for server_view in SNAPSHOTS[name].servers[:3]:
        one = show(SNAPSHOTS[name], fragment=page.anchor(server_view))
        found = one.execute_script("return document.querySelector(':target')?.innerText ?? ''")
        assert server_view.host in found
        assert one.execute_script(
            "const r = document.querySelector(':target').getBoundingClientRect();"
            "return r.top >= 0 && r.top < innerHeight"
        )


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_structure_for_those_who_do_not_see_it(show: Show, name: str) -> None:
    one = show(SNAPSHOTS[name])
    levels = one.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => +h.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert one.execute_script(
        "const ids = [...document.querySelectorAll('[id]')].map(e => e.id);"
        "return new Set(ids).size === ids.length && ids.every(id => id && !/\\s/.test(id))"
    )
    assert one.execute_script(
        "return [...document.querySelectorAll('th')].every(th => th.scope)"
        " && [...document.querySelectorAll('[aria-labelledby]')].every("
        "e => document.getElementById(e.getAttribute('aria-labelledby')))"
    )
