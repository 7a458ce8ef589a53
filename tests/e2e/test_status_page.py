"""The status page in a real headless Chromium: on a phone, in the dark, with hostile data."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from servers import a_night, crowd

from hicache_obs.exporter import page
from hicache_obs.exporter.view import Snapshot

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CONTRAST = """
const parse = c => c.match(/[\\d.]+/g).map(Number);
const light = c => { const [r, g, b] = parse(c).map(v => { v /= 255;
  return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 });
  return .2126 * r + .7152 * g + .0722 * b };
const ground = e => { for (; e; e = e.parentElement) {
  const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$/.test(c)) return c }
  return "rgb(255,255,255)" };
const worst = [];
for (const e of document.querySelectorAll("body *")) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
  worst.push([(a + .05) / (b + .05), e.textContent.trim().slice(0, 40)]);
}
return worst.sort((x, y) => x[0] - y[0])[0];
"""


@pytest.fixture(scope="module")
def browse(
    tmp_path_factory: pytest.TempPathFactory, program: Callable[[str, str], str]
) -> Iterator[Callable[..., Chrome]]:
    """Show a snapshot's page. The page comes from a server, which notes what is asked of it."""
    chromium, driver = program("chromium", "chromium"), program("chromedriver", "chromium-driver")
    body = [b""]
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body[0])

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    chrome = Chrome(options=options, service=ChromeService(driver))

    def show(
        snapshot: Snapshot, *, width: int = 1200, height: int = 800, dark: bool = False
    ) -> Chrome:
        body[0] = page.render(snapshot, show_messages=True).encode()
        asked.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        chrome.get(f"http://127.0.0.1:{server.server_port}/")
        chrome.asked = asked  # type: ignore[attr-defined]  # for the tests
        return chrome

    yield show
    chrome.quit()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("snapshot", [a_night, crowd], ids=["a night", "a crowd"])
@pytest.mark.parametrize("width", [360, 768, 1200])
def test_the_page_does_not_scroll_sideways(
    browse: Callable[..., Chrome], snapshot: Callable[[], Snapshot], width: int
) -> None:
    shown = browse(snapshot(), width=width)
    assert shown.execute_script("return innerWidth") == width
    assert shown.execute_script("return document.documentElement.scrollWidth") <= width


def test_what_fails_and_what_to_do_is_seen_first_on_a_phone(browse: Callable[..., Chrome]) -> None:
    shown = browse(a_night(), width=360, height=800)
    for css in (".counts .failing", "article.bad h3", "article.bad .headline", "article.bad .do"):
        found = shown.execute_script(
            "const r = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [r.top, r.bottom, r.width]",
            css,
        )
        assert 0 <= found[0] < found[1] <= 800, css
        assert found[2] > 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read(browse: Callable[..., Chrome], dark: bool) -> None:
    shown = browse(a_night(), dark=dark)
    ground = shown.execute_script("return getComputedStyle(document.body).backgroundColor")
    red, *_ = (int(part) for part in ground[4:-1].split(","))
    assert (red < 64) is dark
    ratio, text = shown.execute_script(CONTRAST)
    assert ratio >= 4.5, text


def test_nothing_is_asked_of_anybody_and_nothing_runs(browse: Callable[..., Chrome]) -> None:
    shown = browse(crowd())
    assert shown.execute_script("return performance.getEntriesByType('resource').length") in (0, 1)
    assert set(shown.asked) <= {"/", "/favicon.ico"}  # type: ignore[attr-defined]
    assert shown.execute_script("return document.scripts.length") == 0
    assert shown.title.startswith("20 failing")


def test_tables_have_heads_and_the_page_one_title(browse: Callable[..., Chrome]) -> None:
    shown = browse(a_night())
    assert shown.execute_script("return document.querySelectorAll('h1').length") == 1
    heads = shown.execute_script(
        "return [...document.querySelectorAll('table')].map(t => t.querySelectorAll('th').length)"
    )
    assert heads
    assert all(count >= 2 for count in heads)
    assert shown.execute_script("return document.documentElement.lang") == "en"
