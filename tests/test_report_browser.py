"""The report in a real browser: small, folded, sortable, legible, and it loads nothing."""

from pathlib import Path
from typing import Any

import pytest
from in_browser import (
    ARTEFACTS,
    NEEDS_CHROMIUM,
    Open,
    address,
    browser,
    open_task,
    page_of,
    rows,
    show,
    sync_api,
)
from made import made
from program import working_in
from report_runs import ENCODINGS

__all__ = ["address", "browser", "show"]
pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def seven_tasks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of 47 runs over seven tasks."""
    folder = tmp_path_factory.mktemp("seven")
    tasks = ("flipflop", "copy", "counting", "selective_copy", "parity", "sort", "recall")
    encodings = ("rope", "alibi", "cope", "none")
    runs = [(t, pe, s) for s in range(2) for pe in encodings for t in tasks][:47]
    with working_in(folder):
        for task, pe, seed in runs:
            worst = 0.0 if pe == "cope" else 0.2 * (1 + seed)
            made(pe, seed, task, errors={"in_domain": 0.0, "sparse": 0.01, "dense": worst})
    return page_of(folder / "runs", tmp_path_factory)


def test_47_runs_over_seven_tasks_are_a_page_of_at_most_6000_pixels(
    show: Open, seven_tasks: str
) -> None:
    page = show(width=1440, address=seven_tasks)
    assert page.evaluate("document.documentElement.scrollHeight") <= 6000
    assert "47 finished." in page.locator("header").inner_text()
    assert page.locator("details.task").count() == 7
    assert page.locator("details[open]").count() == 0
    assert page.locator(".chart svg").count() == 0
    overview = page.locator("main > .wide table")
    assert overview.locator("thead a").count() == 7
    assert rows(overview)[0] == "cope"
    page = show(width=390, address=seven_tasks)
    open_task(page)
    assert_fits(page, 390)


def test_a_task_opens_and_its_charts_are_drawn(show: Open) -> None:
    page = show()
    page.locator("#task-1 summary").first.click()
    task = open_task(page)
    assert task.locator(".chart").count() == task.locator(".chart > svg, .chart svg.marks").count()
    loss = task.locator("figure", has_text="Training loss")
    # Eight of eleven are coloured.
    coloured = ".mark-line path[stroke^='var(--c']:not([stroke='var(--context)'])"
    assert loss.locator(coloured).count() == 8
    assert loss.locator(".mark-line path[stroke='var(--context)']").count() == 3
    assert loss.locator(".role-legend-label text").all_text_contents() == [
        f"{name} (n = 3)" for name in ENCODINGS[:8]
    ]
    described = loss.locator(".chart")
    assert described.get_attribute("role") == "graphics-document"
    assert described.get_attribute("aria-label").startswith("Training loss. Cross-entropy")


def test_a_click_on_the_legend_fades_the_others(show: Open) -> None:
    page = show()
    loss = open_task(page).locator("figure", has_text="Training loss")
    lines = loss.locator(".mark-line path[stroke='var(--c2)']")
    loss.locator(".role-legend-symbol path").first.click()
    sync_api.expect(lines).to_have_attribute("opacity", "0.1")


def test_tables_are_sorted_by_their_headers(show: Open) -> None:
    page = show()
    table = open_task(page).locator("table.grid").first
    head = table.get_by_role("columnheader", name="long_x4").last
    for act, order in ((head.click, ENCODINGS), (lambda: head.press("Enter"), ENCODINGS[::-1])):
        act()
        assert [name for name in rows(table) if name != "cope"] == order
    assert head.get_attribute("aria-sort") == "descending"


def test_rows_are_filtered_by_words(show: Open) -> None:
    page = show()
    table = open_task(page).locator("table.grid").first
    field = page.get_by_label("Show rows with")
    field.fill("enc_7")
    assert rows(table) == rows(page.locator("main > .wide table")) == ["enc_7"]
    field.fill("0/3 ENC_")
    assert 0 < len(rows(table)) < len(ENCODINGS)


def test_the_overview_leads_to_the_tasks(show: Open) -> None:
    page = show()
    page.get_by_role("link", name="selective_copy").click()
    page.locator("#task-2[open]").wait_for()
    assert page.locator("#task-1").get_attribute("open") is None
    assert page.locator("main > .wide [aria-sort]").count() == 0
    again = show("#task-1")
    again.locator("#task-1[open]").wait_for()


def test_values_of_runs_are_never_executed(show: Open) -> None:
    page = show()
    assert page.title() == "Positional encodings on flipflop, selective_copy"
    page.evaluate("document.getElementById('unfinished').open = true")
    assert "<img src=x" in page.locator("#unfinished").inner_text()
    assert page.locator("img").count() == 0


def test_inspections_are_drawn_when_they_are_unfolded(show: Open) -> None:
    page = show()
    part = page.locator("#inspected")
    part.evaluate("e => { e.open = true; }")
    for box in part.locator(".chart").all():
        box.scroll_into_view_if_needed()
        box.locator("svg").wait_for()
    shown = part.locator("section h3").all_inner_texts()
    assert [title.split(", seed")[0] for title in shown] == [
        "flipflop, cope",
        "selective_copy, cope",
    ]


@pytest.mark.extended
def test_by_keyboard_alone(show: Open) -> None:
    page = show()

    def focused() -> str:
        return str(page.evaluate("document.activeElement.tagName"))

    page.keyboard.press("Tab")
    assert focused() == "A"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert focused() == "MAIN"
    page.locator("#task-1 summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#task-1").get_attribute("open") is not None
    # Wide tables are scrolled by keyboard: their regions take the focus.
    assert page.locator("main .wide:not([tabindex='0'])").count() == 0


CONTRAST = """() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [more, less] = [light(a), light(b)].sort((x, y) => y - x);
    return (more + 0.05) / (less + 0.05);
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const cell = document.querySelector("td.shade");
  const cells = [];
  for (let shade = 0; shade <= 1; shade += 0.01) {
    cell.style.setProperty("--v", shade);
    const style = getComputedStyle(cell);
    cells.push(contrast(style.color, style.backgroundColor));
  }
  const probe = document.body.appendChild(document.createElement("i"));
  const against = (name) => {
    probe.style.color = `var(${name})`;
    return contrast(getComputedStyle(probe).color, paper);
  };
  const lines = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => against(`--c${n}`));
  const words = ["--ink", "--muted", "--accent"].map(against);
  probe.remove();
  return { paper: light(paper), cells, lines, words };
}"""


@pytest.mark.extended
def test_light_and_dark_are_both_legible(show: Open) -> None:
    seen: dict[str, Any] = {}
    for scheme in ("light", "dark"):
        page = show(scheme=scheme)
        open_task(page)
        page.screenshot(path=ARTEFACTS / f"report-{scheme}.png", full_page=True)
        seen[scheme] = page.evaluate(CONTRAST)
        # WCAG AA: 4.5 for text, 3 for what a picture is made of.
        assert min(seen[scheme]["cells"]) >= 4.4
        assert min(seen[scheme]["words"]) >= 4.5
        assert min(seen[scheme]["lines"]) >= 3
    assert seen["light"]["paper"] > 0.9
    assert seen["dark"]["paper"] < 0.05


def assert_fits(page: Any, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert 0 < page.locator(".chart svg").evaluate_all(
        "all => Math.max(...all.map((e) => e.getBoundingClientRect().width))"
    ) <= width  # fmt: skip


@pytest.mark.extended
def test_printed_it_is_light_and_unfolded(show: Open) -> None:
    page = show(scheme="dark")
    page.pdf(path=Path(ARTEFACTS) / "report.pdf", format="A4", print_background=True)
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    assert page.locator(".filter").is_hidden()
