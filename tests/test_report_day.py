"""The report of a day of mixed use (day_of_use.py) in a browser, on a phone and on wide screens."""

from typing import Any

import pytest
from day_of_use import shared_day
from in_browser import NEEDS_CHROMIUM, Open, browser, drawn, page_of, rows, screenshot, show

__all__ = ["browser", "show"]
pytestmark = NEEDS_CHROMIUM
FLIPFLOP, EVALUATED = "#task-2", "#task-3"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(shared_day(tmp_path_factory), tmp_path_factory)


def box(page: Any, selector: str) -> dict[str, float]:
    found: dict[str, float] = page.locator(selector).first.bounding_box()
    return found


@pytest.mark.parametrize(
    "width",
    [
        390,
        pytest.param(768, marks=pytest.mark.extended),
        pytest.param(1280, marks=pytest.mark.extended),
        pytest.param(1920, marks=pytest.mark.extended),
    ],
)
def test_the_page_fits_its_width(show: Open, width: int) -> None:
    """A legend of two lines at most, rows of two lines at most; the setting and the header stay in
    view, the mean is right of the splits; edges with more to scroll to fade."""
    page = show(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    legends = page.locator(".legend").evaluate_all(
        "all => all.map((e) => [e.offsetHeight, getComputedStyle(e).position])"
    )
    assert len(legends) == 4
    for height, position in legends:
        assert height < 3 * 1.5 * 15
        assert position == ("static" if width < 960 else "sticky")
    heights = page.locator(".results tbody tr").evaluate_all("all => all.map(e => e.offsetHeight)")
    assert len(heights) == 39
    assert max(heights) < 3 * 1.25 * 13
    region = page.locator(f"{FLIPFLOP} .tall")
    wider = region.evaluate("e => e.scrollWidth > e.clientWidth + 2")
    assert (region.get_attribute("data-more-right") is not None) == wider
    assert wider == (width < 1920)
    # Again and again: charts that are drawn meanwhile move the end.
    page.wait_for_function(
        """() => {
            const e = document.querySelector('#task-2 .tall');
            e.scrollTo(e.scrollWidth, e.scrollHeight);
            return !e.matches('[data-more-right], [data-more-below]');
        }"""
    )
    region.scroll_into_view_if_needed()
    around = box(page, f"{FLIPFLOP} .tall")
    setting, mean = (
        box(page, f"{FLIPFLOP} tbody tr:last-child {cell}") for cell in ("th", ".mean")
    )
    assert setting["x"] == pytest.approx(around["x"], abs=1)
    split = box(page, f"{FLIPFLOP} tbody tr:last-child [data-split=dense_x4]")
    assert mean["x"] == pytest.approx(split["x"] + split["width"], abs=1)
    assert box(page, f"{FLIPFLOP} thead th")["y"] == pytest.approx(around["y"], abs=1)
    screenshot(page, f"day-{width}")


@pytest.mark.extended
def test_a_link_keeps_the_filters_in_the_address(show: Open) -> None:
    page = show("#pe=cope&metric=loss")
    page.get_by_role("link", name="flipflop", exact=True).click()
    assert "pe=cope" in page.url
    assert "metric=loss" in page.url
    assert "at=task-2" in page.url
    assert abs(box(page, FLIPFLOP)["y"]) < 30
    assert set(rows(page, task=2)) == {"cope"}
    again = show("#" + page.url.split("#")[1])
    assert set(rows(again, task=2)) == {"cope"}
    assert abs(box(again, FLIPFLOP)["y"]) < 30
    page.get_by_role("checkbox", name="cope", exact=True).uncheck()
    page.get_by_role("link", name="counting", exact=True).click()
    page.go_back()
    assert "at=task-2" in page.url
    # The charts above, drawn later, do not move it away.
    assert abs(box(show("#task-4"), "#task-4")["y"]) < 30


@pytest.mark.extended
def test_it_is_said_where_nothing_is_left(show: Open) -> None:
    page = show("#pe=fire")
    assert page.locator("#nothing").is_hidden()
    assert "No setting of this section matches" in page.locator("#task-1").inner_text()
    assert page.locator("#task-1 .content").is_hidden()
    page.get_by_label("Settings that contain").fill("no such key")
    drawn(page)
    assert page.locator("#status").inner_text() == "0 of 39 settings shown"
    assert "Nothing matches these filters." in page.locator("#nothing").inner_text()
    assert page.locator("section.task:visible").count() == 0
    assert "None of these runs matches" in page.locator("#unfinished").inner_text()
    page.locator("#nothing").get_by_role("button").click()
    drawn(page)
    assert len(rows(page, task=2)) == 20


@pytest.mark.extended
def test_filters_select_unfinished_runs_too(show: Open) -> None:
    page = show("#pe=learned")
    shown = page.locator("#unfinished tbody tr:visible").all_inner_texts()
    assert len(shown) == 1
    assert "interrupted" in shown[0]


def test_the_metric_changes_the_mean_and_the_charts(show: Open) -> None:
    page = show("#pe=t5&task=flipflop")
    mean = page.locator(f"{FLIPFLOP} tbody tr:visible .mean")
    title = page.locator(f"{FLIPFLOP} .panels.learning .panel .role-axis-title").nth(1)
    seen = []
    for metric in ("error", "error_seq", "loss"):
        page.get_by_label("Numbers", exact=True).select_option(metric)
        drawn(page)
        heading = page.locator(f"{FLIPFLOP} figure h3").first.inner_text()
        curve = page.locator(f"{FLIPFLOP} .panels.learning .mark-line path").last
        seen.append((mean.inner_text(), title.text_content(), curve.get_attribute("d")))
        assert heading.startswith("Loss" if metric == "loss" else "Error")
    assert all(len(set(values)) == 3 for values in zip(*seen, strict=True))
    page.get_by_label("Numbers", exact=True).select_option("error")
    assert mean.inner_text() == seen[0][0]
    assert [axis for _, axis, _ in seen] == [
        "wrong answers (%)", "sequences with any wrong (%)", "loss (nats)",
    ]  # fmt: skip


@pytest.mark.extended
def test_splits_and_evaluated_lengths_are_filters_of_their_own(show: Open) -> None:
    page = show()
    filters = page.get_by_role("form", name="Filters")
    splits = filters.get_by_role("group", name="Splits").get_by_role("checkbox")
    assert "sparse" in splits.evaluate_all("all => all.map(e => e.value)")
    assert not any(value.isdigit() for value in splits.evaluate_all("all => all.map(e => e.value)"))
    lengths = filters.get_by_role("group", name="Evaluated lengths").get_by_role("checkbox")
    assert lengths.evaluate_all("all => all.map(e => e.value)") == ["32", "64", "128", "256", "512"]
    lengths.nth(4).check()
    drawn(page)
    heads = "[data-column^='split:']:visible"
    assert page.locator(f"{EVALUATED} {heads}").count() == 1
    assert page.locator(f"{FLIPFLOP} {heads}").count() == 7
    splits.nth(0).check()
    drawn(page)
    assert page.locator(f"{FLIPFLOP} {heads}").count() == 1


def test_colours_start_with_the_best_that_have_most_seeds_and_steps(show: Open) -> None:
    """fire is best, but of two seeds and 400 steps."""
    page = show()
    assert rows(page, task=2)[0] == "fire"
    coloured = page.locator(f"{FLIPFLOP} .legend li").all_inner_texts()
    assert coloured == [
        "cope n=3 steps=1000", "rope n=3 steps=1000", "t5 n=3", "cope n=3", "rope n=3", "alibi n=3",
    ]  # fmt: skip


@pytest.mark.extended
def test_n_and_spread_stand_with_every_mean(show: Open) -> None:
    page = show()
    for row in page.locator(f"{FLIPFLOP} .results tbody tr").all():
        seeds = int(row.locator("td").nth(0).inner_text())
        cells = row.locator(".shade")
        assert cells.count() == 8
        spread = ["±" in text or "‡" in text for text in cells.all_inner_texts()]
        assert spread == [seeds > 1] * 8
