"""The documentation site in a real browser: it fits, and loads nothing from another host."""

import subprocess
import sys
import threading
from collections.abc import Iterator
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
LARGEST = 4_000_000
"""Bytes of a page with all that it loads, not compressed."""


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


def test_each_page_fits_its_width_is_small_and_loads_nothing_from_elsewhere(
    browser: Any, host: str, site: Path
) -> None:
    pages = sorted(path.name for path in site.glob("*.html"))
    assert {"index.html", "encodings.html", "api.html", "interactive.html"} <= {*pages}
    loaded, messages = dict[str, int](), list[str]()

    def received(response: Any) -> None:
        loaded[response.url] = int(response.headers["content-length"])
        if not response.url.startswith(host) or response.status >= 400:
            messages.append(f"{response.status} {response.url}")

    for name in pages:
        # With a cache of its own.
        page = browser.new_page()
        loaded.clear()
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"error: {error}"))
        page.on("requestfailed", lambda request: messages.append(f"failed: {request.url}"))
        page.on("response", received)
        page.goto(host + name, wait_until="networkidle")
        assert sum(loaded.values()) < LARGEST, name
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
        if name == "encodings.html":
            formulas = page.locator(".math > math")
            assert formulas.count() > 45
            assert min(formulas.evaluate_all("all => all.map((e) => e.clientHeight)")) >= 15
            drawn = page.locator("article img").evaluate_all(
                "all => all.map((e) => e.naturalWidth)"
            )
            assert min(drawn) > 100
        page.close()
    assert messages == []
