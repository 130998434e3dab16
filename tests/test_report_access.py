"""The report by keyboard, by screen reader, in light and dark, on a phone and on paper."""

import pytest
from in_browser import (
    ARTEFACTS,
    NEEDS_CHROMIUM,
    Open,
    address,
    browser,
    drawn,
    rows,
    screenshot,
    show,
)
from report_runs import ENCODINGS

__all__ = ["address", "browser", "show"]
pytestmark = NEEDS_CHROMIUM


@pytest.mark.extended
def test_by_keyboard_alone(show: Open) -> None:
    page = show()

    def focused() -> str:
        return page.evaluate(
            "() => { const e = document.activeElement;"
            "return [e.tagName, e.name || e.className || e.id || e.textContent].join(' ') }"
        )

    page.keyboard.press("Tab")
    assert focused() == "A skip"
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    box = page.locator(".skip").bounding_box()
    assert box["x"] >= 0
    page.keyboard.press("Enter")
    assert focused() == "MAIN main"
    walked = []
    page.locator("h1").click()
    page.evaluate("document.activeElement.blur()")
    for _ in range(60):
        page.keyboard.press("Tab")
        walked.append(focused())
        if walked[-1] == "INPUT find":
            break
    # In the order in which they stand.
    order = [w for w in walked if w.split()[0] in ("SELECT", "INPUT")]
    assert order == ["SELECT task", "SELECT metric", "INPUT find"]
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    drawn(page)
    assert rows(page) == ["cope"]
    # Wide tables are scrolled by keyboard: their regions take the focus.
    assert page.locator("main .wide:not([tabindex='0'])").count() == 0


@pytest.mark.extended
def test_names_for_screen_readers(show: Open) -> None:
    page = show()
    form = page.get_by_role("form", name="Filters").aria_snapshot()
    for name in ('combobox "Numbers"', 'group "Encodings', 'checkbox "enc_4"', "status"):
        assert name in form
    section = page.get_by_role("region", name="flipflop", exact=True).aria_snapshot()
    assert 'heading "flipflop" [level=2]' in section
    assert 'rowheader "enc_4"' in section
    assert 'columnheader "in_domain"' in section
    chart = page.locator("#task-1 .panels.loss .chart")
    assert chart.get_attribute("role") == "graphics-document"
    assert chart.get_attribute("aria-label").startswith(
        f"Learning curves: training loss, training. Coloured: {', '.join(ENCODINGS[:6])}."
    )
    # The lines behind are not read out, only the points.
    lines = page.locator("#task-1 .panels.loss .mark-line path").all()
    assert len(lines) == 11
    for line in lines:
        assert line.evaluate("e => e.closest('[aria-hidden=true]') !== null")


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
    cell.toggleAttribute("data-deep", shade > 0.73);
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
    seen = {}
    for scheme in ("light", "dark"):
        page = show(scheme=scheme)
        screenshot(page, scheme)
        seen[scheme] = page.evaluate(CONTRAST)
        # WCAG AA: 4.5 for text, 3 for what a picture is made of.
        assert min(seen[scheme]["cells"]) >= 4.4
        assert min(seen[scheme]["words"]) >= 4.5
        assert min(seen[scheme]["lines"]) >= 3
    assert seen["light"]["paper"] > 0.9
    assert seen["dark"]["paper"] < 0.05
    page.get_by_label("Colours of the page").select_option("light")
    assert page.evaluate(CONTRAST)["paper"] > 0.9


@pytest.mark.extended
def test_on_a_telephone_only_tables_scroll_sideways(show: Open) -> None:
    page = show(width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.get_by_label("Numbers", exact=True).is_hidden()
    page.get_by_text("Filters", exact=True).click()
    assert page.get_by_label("Numbers", exact=True).is_visible()
    screenshot(page, "narrow")


@pytest.mark.extended
def test_printed_it_is_light_whole_and_without_controls(show: Open) -> None:
    page = show(scheme="dark")
    page.pdf(path=ARTEFACTS / "report.pdf", format="A4", print_background=True)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 1000})
    screenshot(page, "print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".filters").is_hidden()
    for heading in page.locator("main h2, main h3").all():
        assert heading.is_visible()
    cut = page.locator("main table:visible, main svg.marks:visible").evaluate_all(
        "all => all.map((e) => e.getBoundingClientRect().right).filter((right) => right > 701)"
    )
    assert cut == []
