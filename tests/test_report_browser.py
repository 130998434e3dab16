"""The report in a real browser: small, folded, sortable, legible, and it loads nothing."""

from typing import Any

import pytest
from in_browser import (
    ARTEFACTS,
    NEEDS_CHROMIUM,
    Open,
    address,
    browser,
    open_task,
    rows,
    show,
)
from report_runs import ENCODINGS

from pe_lab.cli.main import main

__all__ = ["address", "browser", "show"]
pytestmark = NEEDS_CHROMIUM


@pytest.mark.parametrize("width", [390, 1440])
def test_a_task_opens_its_charts_are_drawn_and_fit(show: Open, width: int) -> None:
    page = show(width=width)
    assert page.locator("details[open]").count() == 0
    pictures = page.locator(".first .chart svg")
    pictures.nth(1).wait_for()
    # Both are above the fold, or on a phone the first.
    ends = [picture.bounding_box() for picture in pictures.all()]
    assert all(box["y"] + box["height"] < 900 for box in ends[: 2 if width > 1000 else 1])
    page.locator("#task-1 summary").first.click()
    task = open_task(page)
    assert task.locator(".chart").count() == task.locator(".chart > svg, .chart svg.marks").count()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert 0 < page.locator(".chart svg").evaluate_all(
        "all => Math.max(...all.map((e) => e.getBoundingClientRect().width))"
    ) <= width  # fmt: skip


def test_tables_are_sorted_and_filtered(show: Open) -> None:
    page = show()
    table = open_task(page).locator("table.grid").first
    head = table.get_by_role("columnheader", name="long_x4").last
    head.click()
    assert head.get_attribute("aria-sort") is not None
    field = page.get_by_label("Show rows with")
    field.fill("enc_7")
    assert rows(table) == ["enc_7"]
    field.fill("0/3 ENC_")
    assert 0 < len(rows(table)) < len(ENCODINGS)


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
    for scheme, bounds in (("light", (True, False)), ("dark", (False, True))):
        page = show(scheme=scheme)
        open_task(page)
        page.screenshot(path=ARTEFACTS / f"report-{scheme}.png", full_page=True)
        seen = page.evaluate(CONTRAST)
        # WCAG AA: 4.5 for text, 3 for what a picture is made of.
        assert min(seen["cells"]) >= 4.4
        assert min(seen["words"]) >= 4.5
        assert min(seen["lines"]) >= 3
        assert (seen["paper"] > 0.9, seen["paper"] < 0.05) == bounds


@pytest.mark.extended
def test_filters_of_the_leaderboard(show: Open, tmp_path: Any) -> None:
    assert main(["leaderboard", f"to={tmp_path / 'page.html'}"]) == 0
    page = show("#column=conv&pe=none,fox", address=(tmp_path / "page.html").as_uri())
    drawn = page.locator(".chart svg").first.text_content()
    shown = [text.split()[:2] for text in page.locator("tbody tr:visible").all_inner_texts()]
    assert shown == [["pe=none", "conv"], ["fox", "conv"]]
    assert ("fox" in drawn, "rope" in drawn) == (True, False), drawn
