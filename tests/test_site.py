"""The documentation site in a real browser: it fits, and loads nothing from another host."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from in_browser import NEEDS_CHROMIUM, browser
from program import ROOT

pytest.importorskip("material", reason="no mkdocs-material: make test-site installs it")
__all__ = ["browser"]
pytestmark = [NEEDS_CHROMIUM, pytest.mark.extended, pytest.mark.timeout(900)]
LARGEST = 2_000_000
"""Bytes of a page with all that it loads, not compressed."""
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``make site`` makes it: any warning of MkDocs is an error."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder], cwd=ROOT, check=True
    )
    return folder


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def host(site: Path) -> Iterator[str]:
    """The address of a server of the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def show(browser: Any, host: str) -> Iterator[Open]:
    """``show(page, width)``: the page, and the bytes of what it loaded by address; at the end
    nothing was logged, and nothing was requested from another host."""
    messages: list[str] = []
    contexts = []

    def open_page(name: str, width: int = 1440) -> tuple[Any, dict[str, int]]:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
        page, loaded = contexts[-1].new_page(), {}

        def received(response: Any) -> None:
            loaded[response.url] = int(response.headers["content-length"])
            if not response.url.startswith(host) or response.status >= 400:
                messages.append(f"{response.status} {response.url}")

        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"error: {error}"))
        page.on("requestfailed", lambda request: messages.append(f"failed: {request.url}"))
        page.on("response", received)
        page.goto(host + name, wait_until="networkidle")
        return page, loaded

    yield open_page
    for context in contexts:
        context.close()
    assert messages == []


def test_each_page_fits_its_width_and_is_small(show: Open, site: Path) -> None:
    pages = sorted(path.name for path in site.glob("*.html"))
    assert {"index.html", "encodings.html", "api.html", "interactive.html"} <= {*pages}
    for name in pages:
        page, loaded = show(name)
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
        assert sum(loaded.values()) < LARGEST, name
        page.close()


def test_encodings_have_pictures_and_drawn_formulas(show: Open) -> None:
    page, _ = show("encodings.html")
    formulas = page.locator(".math > math")
    assert formulas.count() > 45
    assert min(formulas.evaluate_all("all => all.map((e) => e.clientHeight)")) >= 15
    assert "\\" not in "".join(formulas.all_text_contents())
    widths = page.locator("article img").evaluate_all("all => all.map((e) => e.naturalWidth)")
    assert len(widths) > 50
    assert min(widths) > 100
