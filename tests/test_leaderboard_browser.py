"""The filters of the page of ``pe-lab leaderboard``, in a real browser."""

from pathlib import Path
from typing import Any

import pytest
from in_browser import NEEDS_CHROMIUM, Open, browser, rows, show, sync_api
from leaderboard_runs import rows as table_of
from leaderboard_runs import run
from test_needs import TWO

from pe_lab.report.html import drawn
from pe_lab.report.leaderboard import heat_map as heat_map_picture
from pe_lab.report.leaderboard import leaderboard_page
from pe_lab.results.leaderboard.scores import scores

__all__ = ["browser", "show"]
pytestmark = [NEEDS_CHROMIUM, pytest.mark.extended]
ENTRIES = ("rope", "rope+conv", "rope_2d", "path", "path+conv")
SEEDS = 8
PICTURE = (Path(__file__).parents[1] / "docs" / "img" / "leaderboard.svg").read_text("utf-8")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of two tasks, and of entries with and without a convolution."""
    runs = [
        run(entry, task, seed, [0.0, *[0.01 * seed] * len(TWO.tasks[task].generalises)])
        for entry in ENTRIES
        for task in ("flipflop", "recall")
        for seed in range(SEEDS)
    ]
    found = scores(TWO, table_of(*runs), table_of())
    path: Path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(leaderboard_page(found, ["flipflop", "recall"], {}, [], "a test"), "utf-8")
    return path.as_uri()


def heat_map(page: Any) -> list[str]:
    return rows(page.locator("table.grid"))


def dots(page: Any, task: str) -> int:
    """How many dots the chart of a task has, once it is drawn."""
    chart = page.locator(f"#task-{task} .chart")
    chart.scroll_into_view_if_needed()
    chart.locator("svg").wait_for()
    return int(chart.locator(".mark-symbol path").count())


def test_filters_choose_rows_tasks_and_dots_and_are_in_the_address(
    show: Open, address: str
) -> None:
    page = show()
    assert {*ENTRIES} < {*heat_map(page)}
    page.get_by_role("combobox", name="Task").select_option("recall")
    page.get_by_label("Encodings").fill("rope")
    assert sorted(heat_map(page)) == ["rope", "rope+conv"]
    assert page.locator("details.task:visible h2").all_inner_texts() == ["recall"]
    splits = 1 + len(TWO.tasks["recall"].generalises)
    assert dots(page, "recall") == 2 * SEEDS * splits
    page.get_by_role("combobox", name="Column").select_option("conv")
    assert heat_map(page) == ["rope+conv"]
    sync_api.expect(page.locator("#task-recall .mark-symbol path")).to_have_count(SEEDS * splits)
    assert page.url == f"{address}#task=recall&pe=rope&column=conv"


def test_a_link_has_the_same_choice(show: Open, address: str) -> None:
    page = show("#task=flipflop&pe=rope,path&column=alone")
    assert sorted(heat_map(page)) == ["path", "rope"]
    assert page.get_by_role("combobox", name="Column").input_value() == "alone"
    assert dots(page, "flipflop") == 2 * SEEDS * (1 + len(TWO.tasks["flipflop"].generalises))
    # A link within the page changes the task alone.
    page.get_by_role("link", name="recall").click()
    page.locator("#task-recall").wait_for()
    assert page.locator("details.task:visible").count() == 1
    assert page.url == f"{address}#task=recall&pe=rope,path&column=alone"
    # A link to a place on the page leaves the choice as it is.
    page.locator("a.skip").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**#main")
    assert sorted(heat_map(page)) == ["path", "rope"]
    page.goto(f"{address}#pe=rope_")
    assert heat_map(page) == ["rope_2d"]
    assert page.locator("details.task:visible").count() == 2
    for field in ("Task", "Column"):
        assert page.get_by_role("combobox", name=field).input_value() == ""


@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_does_not_scroll_sideways(show: Open, width: int) -> None:
    page = show("#task=recall", width=width)
    assert dots(page, "recall")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_name_is_cut_or_touches_another_where_the_font_is_15_percent_wider(show: Open) -> None:
    runs = [
        run(entry, "flipflop", seed, [0.0] * 7)
        for entry in ("none", "transformer_xl")
        for seed in range(SEEDS)
    ]
    found = scores(TWO, table_of(*runs), table_of())
    page = show()
    for picture in (drawn(heat_map_picture(found, ["flipflop"]), "svg").decode(), PICTURE):
        page.set_content(picture)
        # "flipflop" is 2.89 times its font's size wide in Liberation Sans, of which both are made.
        bad = page.evaluate("""() => {
            const all = document.querySelector("svg").getBoundingClientRect()
            const texts = [...document.querySelectorAll("text")]
            const one = texts.find(text => text.textContent == "flipflop")
            const size = parseFloat(getComputedStyle(one).fontSize)
            const wider = 1.15 * 2.89 * size / one.getComputedTextLength()
            for (const text of texts) {
                text.setAttribute("lengthAdjust", "spacingAndGlyphs")
                text.setAttribute("textLength", wider * text.getComputedTextLength())
            }
            const boxes = texts.filter(text => text.textContent)
                .map(text => [text.textContent, text.getBoundingClientRect()])
            const cut = boxes.filter(([, box]) => box.left < all.left || box.right > all.right)
            const over = boxes.filter(([, a]) => boxes.some(([, b]) =>
                a.left < b.left && b.left < a.right + 4 && Math.abs(a.top - b.top) < 1))
            return [...cut, ...over].map(([text]) => text)
        }""")
        assert bad == []
