"""Fragments of inspections in a real browser: two on one page, under a strict policy."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from in_browser import ARTEFACTS, NEEDS_CHROMIUM, browser
from inspections import made

from pe_lab.common.vega import vega_script
from pe_lab.inspection.page import page, script, style

sync_api = pytest.importorskip("playwright.sync_api")
__all__ = ["browser"]
pytestmark = NEEDS_CHROMIUM


def policy(*texts: str) -> str:
    hashes = (hashlib.sha256(text.encode()).digest() for text in texts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    rules = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def test_a_page_alone_draws_itself(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(made("_b_a|", [0, 1, 0, 0.9, 0.02], 1)))
    opened = browser.new_page()
    opened.goto((tmp_path / "page.html").as_uri())
    opened.wait_for_selector(".pe-inspect[data-drawn=true]")
    opened.locator("select").nth(1).select_option("position score")
    cells = opened.locator(".mark-rect.cell path")
    assert cells.count() == 15
    assert cells.first.get_attribute("fill") == "var(--pe-less)"
    opened.close()


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_fragments_on_a_page(browser: Any, scheme: str, tmp_path: Path) -> None:
    first = made("_b_a|ba", [0, 1, 0, 0.9, 0.02, 0.9, 0.9], 1)
    second = made("x__y|", [0.5, 0, 0, 0.6, 0], 3)
    fragments = page(first, alone=False) + page(second, alone=False)
    vega, ours = vega_script(), script()
    # Twice, as if each fragment brought it along.
    scripts = f"<script>{vega}</script>" + 2 * f"<script>{ours}</script>"
    head = f"<meta charset=utf-8><style>:root{{color-scheme:light dark}}{style()}</style>"
    whole = f"<!doctype html><html lang=en><head>{policy(vega, ours)}{head}<title>t</title></head>"
    (tmp_path / "page.html").write_text(f"{whole}<body>{fragments}{scripts}</body></html>")
    messages: list[str] = []
    opened = browser.new_page(viewport={"width": 700, "height": 900}, color_scheme=scheme)
    opened.on("console", lambda message: messages.append(message.text))
    opened.on("pageerror", lambda error: messages.append(str(error)))
    opened.goto((tmp_path / "page.html").as_uri())
    for number in range(2):
        opened.locator(".pe-inspect[data-drawn=true]").nth(number).wait_for()
    one, two = (opened.locator(".pe-inspect").nth(n) for n in range(2))
    assert one.locator("svg").count() == 1
    head_choice, map_choice, query_choice = (one.locator("select").nth(n) for n in range(3))
    assert query_choice.input_value() == "6"  # the wrong answer, at the end
    assert (head_choice.input_value(), map_choice.input_value()) == ("layer 1 head 0", "gate")
    label = one.locator("[aria-label^='1: b']").get_attribute("aria-label")
    assert label == "1: b, attention 1.00, position score −2.50, gate 1.00, position 3.72"
    tokens = one.locator(".mark-rect.token path")
    shades = [tokens.nth(n).get_attribute("fill-opacity") for n in range(4)]
    assert shades[0] == shades[2] != shades[1] != shades[3]

    query_choice.focus()
    opened.keyboard.press("ArrowUp")
    opened.keyboard.press("ArrowUp")
    sync_api.expect(one).to_contain_text("Query 4, |, attends to b at 1 (1.00).")
    one.locator("[aria-label^='3: a']").click()
    sync_api.expect(one).to_contain_text("Query 3, a, attends to b at 1 (1.00).")
    assert one.locator("[aria-label='5: b, after the query']").count() == 1
    map_choice.select_option("position score")
    sync_api.expect(one.locator("[aria-label^='Map of position score in layer 1']")).to_have_count(
        1
    )
    assert "Query 4, |, attends to y at 3 (1.00)." in two.inner_text()
    two.locator("[aria-label^='Map of gate']").click(position={"x": 40, "y": 8})
    sync_api.expect(two).to_contain_text("Query 0, x,")

    ARTEFACTS.mkdir(exist_ok=True)
    opened.screenshot(path=ARTEFACTS / f"inspection-{scheme}.png", full_page=True)
    opened.close()
    assert messages == []
