"""Inspections in a real browser: choices, clicks and labels."""

from pathlib import Path
from typing import Any

import pytest
from in_browser import ARTEFACTS, NEEDS_CHROMIUM, browser
from inspections import made

from pe_lab.core.html import rendered
from pe_lab.inspection.page import fragment, page

sync_api = pytest.importorskip("playwright.sync_api")
__all__ = ["browser"]
pytestmark = NEEDS_CHROMIUM


def opened(browser: Any, path: Path, html: str, messages: list[str], **options: Any) -> Any:
    """The page, all of whose charts are drawn."""
    path.write_text(html)
    page = browser.new_page(**options)
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(path.as_uri())
    for box in page.locator(".chart").all():
        box.scroll_into_view_if_needed()
        box.locator("svg").wait_for()
    return page


def test_a_page_alone_draws_itself(browser: Any, tmp_path: Path) -> None:
    html = page(made("_b_a|", [0, 1, 0, 0.9, 0.02], 1))
    shown = opened(browser, tmp_path / "page.html", html, messages := [])
    shown.locator("select").nth(1).select_option("position score")
    cells = shown.locator(".mark-rect.cell path")
    assert cells.count() == 15
    assert cells.first.get_attribute("fill") == "var(--less)"
    shown.close()
    assert messages == []


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_fragments_on_a_page(browser: Any, scheme: str, tmp_path: Path) -> None:
    first = made("_b_a|ba", [0, 1, 0, 0.9, 0.02, 0.9, 0.9], 1)
    second = made("x__y|", [0.5, 0, 0, 0.6, 0], 3)
    both = fragment(first) + fragment(second)
    html = rendered("pe_lab.explain", "page.html", generator="", title="t", fragment=both)
    view = {"viewport": {"width": 700, "height": 900}, "color_scheme": scheme}
    shown = opened(browser, tmp_path / "page.html", html, messages := [], **view)
    one, two = (shown.locator("section").nth(n) for n in range(2))
    head_choice, map_choice, query_choice = (one.locator("select").nth(n) for n in range(3))
    assert query_choice.input_value() == "6"  # the wrong answer, at the end
    assert (head_choice.input_value(), map_choice.input_value()) == ("layer 1 head 0", "gate")
    label = one.locator("[aria-label^='1: b']").get_attribute("aria-label")
    assert label == "1: b, attention 1.00, position score −2.50, gate 1.00, position 3.72"
    tokens = one.locator(".mark-rect.token path")
    shades = [tokens.nth(n).get_attribute("fill-opacity") for n in range(4)]
    assert shades[0] == shades[2] != shades[1] != shades[3]
    query_choice.focus()
    shown.keyboard.press("ArrowUp")
    shown.keyboard.press("ArrowUp")
    sync_api.expect(one).to_contain_text("Query 4, |, attends to b at 1 (1.00).")
    one.locator("[aria-label^='3: a']").click()
    sync_api.expect(one).to_contain_text("Query 3, a, attends to b at 1 (1.00).")
    assert one.locator("[aria-label='5: b, after the query']").count() == 1
    map_choice.select_option("position score")
    chosen = one.locator("[aria-label^='Map of position score in layer 1']")
    sync_api.expect(chosen).to_have_count(1)
    assert "Query 4, |, attends to y at 3 (1.00)." in two.inner_text()
    two.locator("[aria-label^='Map of gate']").click(position={"x": 40, "y": 8})
    sync_api.expect(two).to_contain_text("Query 0, x,")
    shown.screenshot(path=ARTEFACTS / f"inspection-{scheme}.png", full_page=True)
    shown.close()
    assert messages == []
