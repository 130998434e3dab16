"""The documentation site, opened from its folder: it fits, and loads nothing from elsewhere."""

import html
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from in_browser import NEEDS_CHROMIUM, browser
from program import ROOT

from pe_lab.results.format import in_markdown

pytest.importorskip("material", reason="no mkdocs-material: make test-site installs it")
markdown = pytest.importorskip("markdown")
load_config = pytest.importorskip("mkdocs.config").load_config
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


LOOK = """() => ({
  width: document.documentElement.scrollWidth,
  firstColumns: [...document.querySelectorAll(".md-typeset__scrollwrap")].map((box) => {
    box.scrollLeft = 9999;
    const cell = box.querySelector("td");
    const hidden = getComputedStyle(cell).backgroundColor === "rgba(0, 0, 0, 0)" ? 9999 : 0;
    return hidden + Math.abs(cell.getBoundingClientRect().left - box.getBoundingClientRect().left);
  }),
  pictures: [...document.querySelectorAll("article img")].map((e) => [
    e.naturalWidth, e.closest("a")?.getAttribute("href") === e.getAttribute("src"),
  ]),
})"""
"""The width of a page, how far from the edge the first column of each table is once the table is
scrolled to its end, and each picture's width and whether a click opens it."""


def test_each_page_fits_its_width_is_small_and_loads_nothing_from_elsewhere(
    browser: Any, site: Path
) -> None:
    # The page of a wrong address is for a server.
    pages = sorted({path.name for path in site.glob("*.html")} - {"404.html"})
    assert {"index.html", "encodings.html", "api.html", "first_steps.html"} <= {*pages}
    messages = list[str]()
    for name in pages:
        # With a cache of its own.
        page, requested = browser.new_page(), list[str]()
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"error: {error}"))
        page.on("requestfailed", lambda request: messages.append(f"failed: {request.url}"))
        page.on("request", lambda request, all=requested: all.append(request.url))
        page.goto((site / name).as_uri(), wait_until="networkidle")
        loaded = {re.split("[?#]", url)[0] for url in requested if not url.startswith("data:")}
        # An address of another host is no file here.
        files = [site / url.removeprefix(f"{site.as_uri()}/") for url in loaded]
        assert sum(file.stat().st_size for file in files) < LARGEST, name
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            looked = page.evaluate(LOOK)
            assert looked["width"] <= width, (name, width)
            assert max(looked["firstColumns"], default=0) < 30, (name, width)
            assert all(100 < wide <= 390 or opens for wide, opens in looked["pictures"]), name
        if name == "encodings.html":
            formulas = page.locator(".math > math")
            assert formulas.count() > 45
            assert min(formulas.evaluate_all("all => all.map((e) => e.clientHeight)")) >= 15
        if name == "first_steps.html":
            assert len(looked["pictures"]) == 1
            assert "┆ restored │" in page.locator("article").inner_text()
        page.close()
    assert messages == []


def test_search_and_every_link_work_from_the_folder(browser: Any, site: Path) -> None:
    page, links = browser.new_page(), set[Path]()
    for path in {*site.glob("*.html")} - {site / "404.html"}:
        for target in re.findall(r'(?:href|src)="([^":#?]+)[#"]', path.read_text()):
            links.add(site / target)
    assert len(links) > 80
    assert [link for link in links if not link.is_file()] == []
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially("flip-flop")
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url(re.compile(f"{site.as_uri()}/(?!index).*"))


def test_no_backslash_of_a_table_is_shown() -> None:
    config, text = load_config(str(ROOT / "mkdocs.yml")), r"runs <= 0.02 | a_b* ~c` [1] \d"
    shown = markdown.markdown(
        in_markdown(text),
        extensions=config.markdown_extensions,
        extension_configs=config.mdx_configs,
    )
    assert html.unescape(shown) == f"<p>{text}</p>"
