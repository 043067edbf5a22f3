"""The status page of a running fabric in a real browser."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator

import pytest

from tests.processes import Command, Start

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

WORKERS = 4
WITHIN_MS = 30_000
TRAINING = """
    import time

    import torch

    import mlfabric

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = mlfabric.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model, method="elastic")
    while True:
        time.sleep(0.1)
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is missing; on Debian it is in the package chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


def _trained(start: Start, port: int) -> tuple[str, list[Command]]:
    """Start a fabric and workers that train; return the page's address, and the workers."""
    fabric = start("up", "--port", str(port), "--log-level", "error")
    address = fabric.read_until("status page").split()[-1]
    fabric.read_until("train with")
    told = {"MLFABRIC_SCHEDULER": f"127.0.0.1:{port}", "MLFABRIC_WORKERS": str(WORKERS)}
    workers = [
        start("SCRIPT", script=TRAINING, MLFABRIC_NAME=f"worker-{rank}", MLFABRIC_HOST=f"host-{rank}", **told)
        for rank in range(WORKERS)
    ]
    return address, workers


def test_the_page_shows_a_running_fabric_and_who_has_died(browser, start: Start, free_port: int) -> None:
    address, workers = _trained(start, free_port)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(address) else None)
    page.goto(address)
    page.set_default_timeout(WITHIN_MS)

    members, rounds = page.locator("#members"), page.locator("#rounds tr")
    for rank in range(WORKERS):
        here = members.locator(f"tr[data-key=worker-{rank}] td.here")
        sync_api.expect(here).to_be_visible(timeout=WITHIN_MS)
    sync_api.expect(rounds).to_have_count(12, timeout=WITHIN_MS)
    page.wait_for_timeout(3_000)

    hosts = page.locator("#links tr").count()
    assert hosts >= WORKERS
    assert page.locator("#matrix rect").count() == hosts * (hosts - 1)
    assert re.search(r"Rounds take [\d.]+ s.* planned [\d.]+ s", page.locator("#summary").inner_text())
    _hovers(page)
    _pauses(page)
    _reached_by_keys(page)
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400

    workers[2].signal(signal.SIGKILL)
    sync_api.expect(members.locator("tr[data-key=worker-2] td.lost")).to_be_visible(timeout=WITHIN_MS)
    sync_api.expect(page.locator("#notes li").filter(has_text="worker-2").first).to_be_visible()
    assert wrong == []


def _hovers(page) -> None:
    """Point at the timeline until a bar says what it is."""
    box = page.locator("#timeline").bounding_box()
    for step in range(200):
        page.mouse.move(box["x"] + box["width"] - 2 - 3 * step, box["y"] + 14)
        if words := page.locator("#bar").inner_text():
            assert re.search(r"round \d+, version \d+: (took|is under way)", words), words
            return
    raise AssertionError("no bar of the timeline says what it is")


def _pauses(page) -> None:
    page.locator("#pause").click()
    first = page.locator("#rounds tr td").first.inner_text()
    page.wait_for_timeout(2_500)
    assert page.locator("#rounds tr td").first.inner_text() == first
    sync_api.expect(page.locator("#replay")).to_be_visible()
    page.locator("#until").fill("-2")
    assert page.locator("#rounds tr td").first.inner_text() != first
    page.locator("#pause").click()
    sync_api.expect(page.locator("#rounds tr td").first).not_to_have_text(first, timeout=WITHIN_MS)


def _reached_by_keys(page) -> None:
    page.locator("#timeline").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowLeft")
    sync_api.expect(page.locator("#bar")).to_contain_text("version")
