"""The report in a real browser: it draws, filters, goes by keyboard, and loads nothing."""

from pathlib import Path

import pytest
from in_browser import (
    NEEDS_CHROMIUM,
    Open,
    address,
    browser,
    drawn,
    rows,
    screenshot,
    series,
    show,
)
from made import evaluate, made
from program import command
from report_runs import ENCODINGS, SEEDS, error_of

DOTS = ".mark-symbol path[opacity='0.55']"
"""Single seeds."""
POINTS = ".mark-symbol path:not([opacity='0.55'])"

__all__ = ["address", "browser", "show"]
pytestmark = NEEDS_CHROMIUM


def test_every_chart_is_drawn(show: Open) -> None:
    page = show()
    assert (
        page.locator("#task-1 .panel:visible").count() == page.locator("#task-1 .chart svg").count()
    )
    # Six of eleven are coloured, of which each has a line in each panel.
    assert series(page, "against-length") == [6, 6, 6]
    assert series(page, "against-p_ignore") == [6, 6]
    assert series(page, "learning") == [6] * 7
    assert series(page, "loss") == [6]
    grey = page.locator("#task-1 .panels.loss .mark-line path[stroke='var(--context)']")
    assert grey.count() == 5
    assert page.locator(f"#task-1 .panels.cost {POINTS}").count() == 2 * 11
    assert page.locator("#task-1 .legend li").all_inner_texts() == [
        f"{name} n=3" for name in ENCODINGS[:6]
    ]
    screenshot(page, "light")


def test_points_stand_where_their_numbers_say(show: Open) -> None:
    page = show("#pe=enc_9&split=long_x4,in_domain,long_x2")
    panel = "#task-1 .panels.against-length .panel:visible"
    circles = page.locator(f"{panel} {POINTS}").all()
    assert page.locator(f"{panel} {DOTS}").count() == 3 * len(SEEDS)
    labels = [circle.get_attribute("aria-label") for circle in circles]
    assert len(labels) == 3
    for x, split, label in zip((16, 32, 64), (0, 3, 4), labels, strict=True):
        mean = 100 * sum(error_of(9, seed, split) for seed in SEEDS) / 3
        assert label.startswith(f"enc_9, {x}: {mean:.3g} ± ")


@pytest.mark.extended
def test_filters_act_on_map_table_and_charts(show: Open) -> None:
    page = show()
    assert len(rows(page)) == 11
    for name in ("enc_3", "enc_5"):
        page.get_by_role("checkbox", name=name, exact=True).check()
    drawn(page)
    assert rows(page) == ["enc_3", "enc_5"]
    assert series(page, "against-length") == [2, 2, 2]
    assert page.locator("#status").inner_text() == "2 of 12 settings shown"
    assert page.locator("#task-1 .legend li").all_inner_texts() == [
        "enc_3 n=3", "enc_5 n=3",
    ]  # fmt: skip
    page.get_by_role("checkbox", name="sparse", exact=True).check()
    page.get_by_role("checkbox", name="dense", exact=True).check()
    drawn(page)
    assert page.locator("#task-1 .results [data-column^='split:']:visible").count() == 2
    assert page.locator("#task-1 .results tbody [data-split]:visible").count() == 4
    assert page.locator("#task-1 .panels.learning .panel:visible h4").all_inner_texts() == [
        "sparse", "dense",
    ]  # fmt: skip
    page.get_by_label("hide the grey settings").check()
    drawn(page)
    grey = page.locator("#task-1 .panel:visible .mark-line path[stroke='var(--context)']")
    assert grey.count() == 0
    screenshot(page, "filtered")
    again = show("#" + page.url.split("#")[1])
    assert rows(again) == ["enc_3", "enc_5"]
    assert series(again, "learning") == [2, 2]
    again.get_by_role("button", name="Show all again").click()
    drawn(again)
    assert len(rows(again)) == 11
    assert "#" not in again.url or again.url.endswith("#")


@pytest.mark.extended
def test_where_the_splits_leave_no_curve_there_is_none(show: Open) -> None:
    page = show("#split=long_x4,sparse_x4")
    assert page.get_by_role("heading", name="Error against length").count() == 0
    assert series(page, "against-p_ignore") == [6]


@pytest.mark.extended
def test_nothing_is_cut_off_or_runs_into_its_neighbour(show: Open) -> None:
    page = show("#pe=enc_0,enc_3,enc_5,enc_9,cope")
    beyond = "all => all.filter((e) => e.getBoundingClientRect().right > e.closest('OUTER')"
    beyond += ".getBoundingClientRect().right + 1).map((e) => e.textContent)"
    paths = page.locator(".plain tbody th code")
    assert paths.count() > 0
    assert paths.evaluate_all(beyond.replace("OUTER", "th")) == []
    colours = "e => [getComputedStyle(e).fill, getComputedStyle(e.closest('.pe-inspect')).color]"
    on_shade = page.locator(".pe-inspect .mark-text.number text").first.evaluate(colours)
    assert on_shade[0] == on_shade[1]


@pytest.mark.extended
def test_the_task_and_the_text_filter(show: Open) -> None:
    page = show()
    page.get_by_label("Task", exact=True).select_option("selective_copy")
    drawn(page)
    assert page.locator("section.task:visible").count() == 1
    assert rows(page, task=2) == ["cope"]
    page.get_by_label("Task", exact=True).select_option("flipflop")
    page.get_by_label("Settings that contain").fill("enc_7")
    drawn(page)
    assert rows(page) == ["enc_7"]
    assert series(page, "against-length") == [1, 1, 1]


@pytest.mark.extended
def test_bands_and_the_axis(show: Open) -> None:
    page = show("#pe=enc_9")
    band = page.locator("#task-1 .panels.against-length .panel:visible .mark-area path").first

    def shape() -> str:
        drawn(page)
        return str(band.get_attribute("d"))

    seen = [shape()]
    page.get_by_label("Band over seeds").select_option("range")
    seen.append(shape())
    page.get_by_label("Band over seeds").select_option("none")
    seen.append(shape())
    page.get_by_label("Error axis").select_option("0.5")
    seen.append(shape())
    assert len(set(seen)) == 4


@pytest.mark.extended
def test_numbers_of_the_charts_as_a_table(show: Open) -> None:
    page = show("#pe=enc_9")
    figure = page.locator(
        "#task-1 figure", has=page.get_by_role("heading", name="Error against length")
    )
    figure.get_by_text("Numbers of these charts").click()
    table = figure.get_by_role("table")
    table.wait_for()
    assert table.locator("tbody tr").count() == 7
    mean = 100 * sum(error_of(9, seed, 4) for seed in SEEDS) / 3
    (line,) = (t for t in table.locator("tbody tr").all_inner_texts() if "long_x4" in t)
    assert f"{mean:.3g} ± " in line
    page.get_by_role("checkbox", name="enc_8", exact=True).check()
    drawn(page)
    assert table.locator("tbody tr").count() == 14


@pytest.mark.extended
def test_tables_are_sorted_by_their_headers(show: Open) -> None:
    page = show()
    assert rows(page) == [*ENCODINGS, "cope"]
    assert page.locator("#task-1 .results [aria-sort]").count() == 0
    button = page.locator("#task-1 .results").get_by_role("button", name="setting")
    button.click()
    assert rows(page) == ["cope", *ENCODINGS]
    head = page.locator("#task-1 .results [data-column=label]")
    assert head.get_attribute("aria-sort") == "ascending"
    button.press("Enter")
    assert rows(page) == [*reversed(ENCODINGS), "cope"]
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("#task-1 .results").get_by_role("button", name="OOD mean").click()
    assert "sort=ood" in page.url
    assert rows(page) == [*ENCODINGS, "cope"]


@pytest.mark.extended
def test_evaluations_are_filtered_by_length(
    show: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    several = "combined:parts=[cope,rope]"
    for seed in range(2):
        run = made("rope", seed)
        evaluate(run, "trained", {64: 0.1 + 0.1 * seed, 256: 0.75})
        evaluate(run, several, {64: 0.25, 256: 0.5})
        evaluate(run, "pi", {256: 0.625}, scale=4.0)
    assert command("report", f"out={tmp_path}", cwd=tmp_path).returncode == 0
    address = (tmp_path / "index.html").as_uri()
    page = show(address=address)
    heads = [f"{several}\nin place of rope", "pi\nin place of rope", "rope\nas trained"]
    named = page.locator("#task-2 .results tbody tr:visible th")
    assert sorted(named.all_inner_texts()) == heads
    assert series(page, "against-length", task=2) == [3]
    first = page.locator(f"#task-2 .panels.against-length {POINTS}")
    labels = [point.get_attribute("aria-label") for point in first.all()]
    assert sum(text.startswith("rope as trained, 64: 15 ± ") for text in labels) == 1
    page.get_by_role("checkbox", name=several, exact=True).check()
    page.get_by_role("checkbox", name="256", exact=True).check()
    drawn(page)
    assert named.all_inner_texts() == heads[:1]
    assert "No setting of this section matches" in page.locator("#task-1").inner_text()
    again = show("#" + page.url.split("#")[1], address=address)
    assert again.get_by_role("checkbox", name=several, exact=True).is_checked()
    kept = again.locator("#task-2 .results tbody [data-split]:visible")
    assert [cell.inner_text().split() for cell in kept.all()] == [["50.0", "±", "0.0"]]


def test_values_of_runs_are_never_executed(show: Open) -> None:
    page = show()
    assert page.title() == "Positional encodings on flipflop, selective_copy"
    assert "<img src=x" in page.locator("#unfinished").inner_text()
    assert page.locator("img").count() == 0


@pytest.mark.extended
def test_a_made_up_address_does_no_harm(show: Open) -> None:
    page = show(
        "#pe=nobody&split=nowhere&metric=lies&power=9&sort=split:none&find=%3Cb%3E&theme=mauve"
    )
    assert rows(page) == []
    page.get_by_role("main").get_by_role("button", name="Show all again").click()
    drawn(page)
    assert len(rows(page)) == 11


def test_filters_select_inspections(show: Open) -> None:
    page = show()
    assert page.locator("#inspected .pe-inspect:visible").count() == 2
    page.get_by_label("Task", exact=True).select_option("selective_copy")
    drawn(page)
    assert page.locator("#inspected .pe-inspect:visible h3").all_inner_texts() == [
        "selective_copy, cope, seed 0: in_domain, sequence 0"
    ]
    page.get_by_role("checkbox", name="enc_1", exact=True).check()
    drawn(page)
    assert page.locator("#inspected .pe-inspect:visible").count() == 0
    assert "None of the inspected runs matches" in page.locator("#inspected").inner_text()
