"""The real app in a real browser: charts have marks, a slider redraws one, the console is clean."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = Path(os.environ.get("K3_CHROMIUM", "/usr/bin/chromium"))
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = [
    "",
    *(re.sub(r"^\d+_", "", path.stem) for path in sorted((ROOT / "pages").glob("*.py"))),
]
IDLE = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  return app && app.getAttribute('data-test-script-state') === 'notRunning'
    && !document.querySelector('[data-testid="stSkeleton"]');
}"""
SLIDER = 'input[type="range"]'
CHART = '[data-testid="stVegaLiteChart"]'
MARKED = f"""() => [...document.querySelectorAll('{CHART}')]
  .filter(c => c.checkVisibility())
  .map(c => c.querySelector('canvas') !== null
    || c.querySelector('[class*="role-mark"] :is(path, text, line, image, rect)') !== null)"""
PICTURES = f"""() => [...document.querySelectorAll('{CHART}')].map(c => {{
  const canvas = c.querySelector('canvas'), svg = c.querySelector('svg');
  return canvas ? canvas.toDataURL() : svg ? svg.innerHTML : '';
}})"""
OVERFLOW = """() => [...document.querySelectorAll('html, [data-testid="stMain"]')]
  .some(e => e.scrollWidth > e.clientWidth + 1)"""

pytestmark = [
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM} (K3_CHROMIUM)"),
    pytest.mark.xdist_group("browser"),
]


class Server(NamedTuple):
    """The running app."""

    address: str
    pid: int

    @property
    def peak_bytes(self) -> int:
        """Largest resident memory so far (Linux)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


@pytest.fixture(scope="module")
def server():
    """The app on a free port; ends with the tests of this file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "Home.py", "--server.headless", "true"]
    process = subprocess.Popen(
        [*command, "--server.address", "127.0.0.1", "--server.port", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, "the app ended before it answered"
                assert time.monotonic() < deadline, "the app does not answer"
                time.sleep(0.2)
        yield Server(address, process.pid)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """One tab, and what its console complained about."""

    def __init__(self, browser, address: str, width: int, scheme: str) -> None:
        self.address = address
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(30_000)
        self.errors: list[str] = []
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", self._listen)

    def _listen(self, message) -> None:
        # Streamlit looks for its endpoints below the page's own path first and is answered 404.
        if message.type == "error" and "_stcore" not in (message.location or {}).get("url", ""):
            self.errors.append(message.text)

    def open(self, path: str) -> None:
        self.tab.goto(f"{self.address}/{path}")
        self.tab.wait_for_selector('[data-testid="stHeading"] h1')
        self.settle()

    def settle(self) -> None:
        """Wait until the script has ended and every chart in sight has marks."""
        self.tab.wait_for_timeout(150)
        self.tab.wait_for_function(IDLE)
        self.tab.wait_for_function(f"() => ({MARKED})().every(Boolean)")

    def pictures(self) -> list[str]:
        return self.tab.evaluate(PICTURES)

    def redrawn(self, before: list[str]) -> bool:
        """Whether a chart differs from `before`; marks follow a moment after the run."""
        for _ in range(10):
            if self.pictures() != before:
                return True
            self.tab.wait_for_timeout(100)
        return False


@pytest.fixture
def visit(server, browser):
    visits = []

    def open_tab(path: str = "", width: int = 1440, scheme: str = "light") -> Visit:
        visit = Visit(browser, server.address, width, scheme)
        visits.append(visit)
        visit.open(path)
        return visit

    yield open_tab
    for visit in visits:
        visit.context.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_renders_its_charts_without_console_errors(visit, name):
    seen = visit(name)
    marked = seen.tab.evaluate(MARKED)
    assert marked
    assert all(marked)
    assert seen.tab.locator('[data-testid="stException"]').count() == 0
    assert seen.tab.locator('[data-testid="stAlertContentError"]').count() == 0
    assert seen.errors == []


@pytest.mark.parametrize("name", NAMES)
def test_a_dark_phone_shows_a_page_without_sideways_scrolling(visit, name):
    seen = visit(name, width=390, scheme="dark")
    assert seen.tab.evaluate(OVERFLOW) is False
    assert all(seen.tab.evaluate(MARKED))
    assert seen.errors == []


@pytest.mark.parametrize("name", NAMES)
def test_a_slider_redraws_a_chart_and_stands_in_the_link(visit, name):
    seen = visit(name)
    before, address = seen.pictures(), seen.tab.url
    sliders = seen.tab.locator(f"section {SLIDER}")
    assert sliders.count() > 0
    for index in range(sliders.count()):
        slider = sliders.nth(index)
        at_top = slider.input_value() == slider.get_attribute("max")
        slider.focus()
        seen.tab.keyboard.press("ArrowLeft" if at_top else "ArrowRight")
        seen.tab.wait_for_function("address => location.href !== address", arg=address)
        seen.settle()
        if seen.redrawn(before):
            break
        address = seen.tab.url
    else:
        pytest.fail("no slider changed a chart")
    assert "?" in seen.tab.url
    assert seen.errors == []


def test_a_link_is_reproduced_kept_over_a_page_switch_and_undone_by_back(visit):
    seen = visit("Context_Parallel?kcp_ranks=7")
    ranks = seen.tab.locator('[data-testid="stSlider"]', has_text="Context-parallel ranks")
    thumb = ranks.locator(SLIDER)
    assert thumb.input_value() == "7"
    thumb.focus()
    seen.tab.keyboard.press("ArrowRight")
    seen.tab.wait_for_url("**kcp_ranks=8*")
    seen.settle()
    seen.tab.locator('[data-testid="stSidebar"] a', has_text="Speculative Replay").click()
    seen.tab.wait_for_url("**/Speculative_Replay?**kcp_ranks=8*")
    seen.settle()
    seen.tab.go_back()
    seen.tab.wait_for_url("**/Context_Parallel?**kcp_ranks=8*")
    seen.settle()
    seen.tab.go_back()
    seen.tab.wait_for_url("**kcp_ranks=7*")
    seen.settle()
    assert thumb.input_value() == "7"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_server_stays_below_one_gibibyte_with_all_pages_visited(server, visit):
    seen = visit()
    for name in NAMES[1:]:
        seen.open(name)
    assert server.peak_bytes < 2**30
