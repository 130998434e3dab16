"""Fragments of inspections in a real browser: two on one page, under a strict policy."""

import base64
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inspections import made
from program import ROOT

from pe_lab.inspection.page import page, script, style

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: make browser installs it")
ARTEFACTS = ROOT / "test-artefacts"


def policy(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    allowed = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    return f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


def test_a_map_fits_light_and_dark(browser: Any, tmp_path: Path) -> None:
    """A page, or a printer, changes the scheme under a map that is painted once."""
    (tmp_path / "page.html").write_text(page(made("_b_a|", [0, 1, 0, 0.9, 0.02], 1)))
    painted = []
    for scheme in ("light", "dark"):
        opened = browser.new_page(color_scheme=scheme)
        opened.goto((tmp_path / "page.html").as_uri())
        opened.locator("select").nth(1).select_option("position score")
        painted.append(
            opened.locator("canvas").evaluate(
                "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
            )
        )
        opened.close()
    assert painted[0] == painted[1]
    assert painted[0][:4] == [217, 130, 43, 255]
    assert painted[0][4:8] == [0, 0, 0, 0]  # beyond the query: the page's own ground


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_fragments_on_a_page(browser: Any, scheme: str, tmp_path: Path) -> None:
    first = made("_b_a|ba", [0, 1, 0, 0.9, 0.02, 0.9, 0.9], 1)
    second = made("x__y|", [0.5, 0, 0, 0.6, 0], 3)
    fragments = page(first, alone=False) + page(second, alone=False)
    # Twice, as when each fragment brings it along.
    scripts = 2 * f"<script>{script()}</script>"
    head = f"<meta charset=utf-8><style>:root{{color-scheme:light dark}}{style()}</style>"
    whole = f"<!doctype html><html lang=en><head>{policy(script())}{head}<title>t</title></head>"
    (tmp_path / "page.html").write_text(f"{whole}<body>{fragments}{scripts}</body></html>")
    said: list[str] = []
    opened = browser.new_page(viewport={"width": 700, "height": 900}, color_scheme=scheme)
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto((tmp_path / "page.html").as_uri())
    one, two = (opened.locator(".pe-inspect").nth(n) for n in range(2))
    assert one.locator(".pe-inspect-tokens").count() == 1
    chosen = one.locator("button[aria-pressed=true]")
    assert chosen.locator("b").inner_text() == "a"  # the wrong answer, at the end
    told = one.locator("button").nth(1).get_attribute("aria-label")
    assert told == "1: b, attention 1.00, position score -2.50, gate 1.00, position 3.72"
    shade = "e => getComputedStyle(e).backgroundColor"
    grounds = [one.locator("button").nth(n).evaluate(shade) for n in range(4)]
    assert grounds[0] == grounds[2] != grounds[1] != grounds[3]

    chosen.press("ArrowLeft")
    opened.keyboard.press("ArrowLeft")
    assert chosen.locator("b").inner_text() == "|"
    assert opened.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert "Query 4, |, attends to b at 1 (1.00)." in one.inner_text()
    one.locator("button").nth(3).click()
    assert "Query 3, a, attends to b at 1 (1.00)." in one.inner_text()
    assert "after the query" in str(one.locator("button").nth(5).get_attribute("aria-label"))
    one.locator("select").nth(1).select_option("position score")
    assert "Map of position score in layer 1 head 0" in str(
        one.locator("canvas").get_attribute("aria-label")
    )
    assert "Query 4, |, attends to y at 3 (1.00)." in two.inner_text()
    two.locator("canvas").click(position={"x": 3, "y": 3})
    assert "Query 0, x," in two.inner_text()

    ARTEFACTS.mkdir(exist_ok=True)
    opened.screenshot(path=ARTEFACTS / f"inspection-{scheme}.png", full_page=True)
    opened.close()
    assert said == []
