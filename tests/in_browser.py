"""The report in a browser: fixtures, and what is on the page.

Screenshots and the printed page are kept in test-artefacts/ (not in git).
"""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from program import ROOT, working_in
from report_runs import shared_runs

from pe_lab.cli.main import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
sync_api = pytest.importorskip("playwright.sync_api")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: make browser installs it"
)

FLAGS = [
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
]
ARTEFACTS = ROOT / "test-artefacts"

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of ``report_runs``."""
    out = tmp_path_factory.mktemp("page")
    with working_in(shared_runs(tmp_path_factory).parent):
        assert main(["report", f"to={out}"]) == 0
    ARTEFACTS.mkdir(exist_ok=True)
    return (out / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, address: str) -> Iterator[Open]:
    """``show(hash, width, scheme)``: the page; at the end it must have logged nothing and
    requested nothing but itself."""
    messages: list[str] = []
    contexts = []

    def open_page(
        hash: str = "", width: int = 1280, scheme: str = "light", address: str = address
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.split("#")[0] == address
                else messages.append(f"request: {request.url}")
            ),
        )
        page.goto(address + hash)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert messages == []


def open_task(page: Any, number: int = 1) -> Any:
    """Unfold a task and draw all of its charts."""
    task = page.locator(f"#task-{number}")
    task.evaluate("e => { e.open = true; }")
    for chart in task.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator("svg").first.wait_for()
    return task


def rows(table: Any) -> list[str]:
    """The first word of each visible row of a table."""
    return [text.split()[0] for text in table.locator("tbody tr:visible th").all_inner_texts()]
