"""An inspection in the terminal and as a page."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_page import Page
from inspections import Fake, fake, made, run
from made import edit_checkpoint
from program import assert_has
from rich.console import Console

from docs.facts import section
from pe_lab.cli.inspect import show
from pe_lab.experiment.load_run import inspect_run
from pe_lab.inspection.data import Answer, Head
from pe_lab.inspection.page import LEVELS, MAX_STEP, chart, fragment, lines

__all__ = ["fake", "run"]


def test_the_terminal_shows_gates_counting() -> None:
    inspection = made("_b_a|", [0, 1, 0, 0.9, 0.02], 1)
    printed = [text.plain for text in lines(inspection, inspection.heads[0], None, 40, False)]
    assert printed == [
        "selective_copy, cope, seed 0: dense, sequence 3",
        "0 of 1 scored answers are right. Heads are ranked by how much their gate differs between "
        "tokens: layer 1 head 0 comes first, with a mean of b 1.00, a 0.90, | 0.02, _ 0.00.",
        "answers a≠b",
        "",
        "layer 1 head 0  0.50  gate b 1.0 ..",
        "",
        "layer 1 head 0, query 4  |  target b (0.25) wrong, predicted a (0.75)",
        "the answer is held by b at 1, a at 3: 1.00 of this head's attention",
        "key               0    1    2    3    4",
        "token             _    b    _    a    |",
        "gate              · █1.0    · █.90  .02",
        "position        1.9  1.9  0.9  0.9  0.0",
        "attention         · █1.0    ·    ·    ·",
        "position score -2.5 -2.5 -2.5 -2.5 -2.5",
    ]


def test_quantities_other_than_shares_are_printed_unscaled() -> None:
    inspection = made("ba|", [0, 0, 0], 1)
    name = "a quantity with a name"
    maps = {"attention": inspection.heads[0].maps["attention"]}
    maps[name] = np.tri(3, dtype=np.float32) * np.array([-3.0, 1.83, 0.5], dtype=np.float32)
    shown = made("ba|", [0, 0, 0], 1, heads=[Head(0, 0, maps, 1.9)], ranked_by=name)
    printed = [text.plain for text in lines(shown, shown.heads[0], None, 80, True)]
    assert printed[4] == f"layer 0 head 0  1.90  {name} a 1.83 | 0.50 b -3.00 "
    rows = {row[:15]: row[15:].split() for row in printed}
    assert rows["a quantity wi… "] == ["-3.0", "1.8", "0.5"]
    # Aligned with the keys above.
    assert len({len(row) for row in printed[-4:]}) == 1


@pytest.mark.parametrize("no_color", [False, True])
def test_without_colours_characters_shade(
    no_color: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = io.StringIO()
    terminal = Console(
        file=seen, force_terminal=True, color_system="truecolor", no_color=no_color, width=100
    )
    monkeypatch.setattr("pe_lab.cli.inspect.console", lambda: terminal)
    show([f"run={run}"])
    assert bool({*"░▒▓█"} & {*seen.getvalue()}) is no_color


def test_colours_are_deeper_where_a_gate_is_open() -> None:
    inspection = made("_b_a|", [0, 1, 0, 0.4, 0.02], 1)
    printed = lines(inspection, inspection.heads[0], None, 80, True)
    token = next(text for text in printed if text.plain.startswith("token"))
    styles = {token.plain[s.start : s.end].strip(): str(s.style) for s in token.spans}
    assert styles["_"] == styles["|"] == "bright_black"
    blue = {w: int(re.findall(r"\d+", styles[w])[2]) for w in "ab"}
    assert blue["a"] < blue["b"]


def test_a_long_row_is_folded_and_its_gates_summed() -> None:
    inspection = made("ab_" * 200, [1, 1, 0] * 200, 100)
    printed = [text.plain for text in lines(inspection, inspection.heads[0], 599, 100, False)]
    assert len(printed) < 35
    assert max(map(len, printed[5:])) <= 100
    assert "…" in "".join(printed)
    counts = [text for text in printed if text.startswith("gate")]
    whole = sum(float(n) for text in counts for n in re.findall(r"\+(\S+)", text))
    whole += sum(text.count("█1.0") for text in counts)
    assert whole == 400


def chart_in(text: str) -> tuple[Page, dict[str, Any], dict[str, Any]]:
    """The parsed page, and the values of its chart's data and signals."""
    page = Page(text)
    (spec,) = page.specs()
    data = {source["name"]: source.get("values") for source in spec["data"]}
    return page, data, {signal["name"]: signal.get("value") for signal in spec["signals"]}


def test_a_page_holds_the_maps_as_they_are(run: Path) -> None:
    inspection = inspect_run(run, "long_x4", 1)
    parsed, data, signals = chart_in(fragment(inspection))
    assert not any("id" in e["attributes"] for e in parsed.elements)
    assert [row["token"] for row in data["tokens"]] == inspection.tokens
    assert parsed.all("p")[0]["text"] == inspection.summary
    rows = {(row["head"], row["query"]): row for row in data["rows"]}
    assert len(rows) == len(data["rows"])
    assert rows.keys() == {(h.name, q) for h in inspection.heads for q in inspection.queries}
    for head in inspection.heads:
        for name, values in head.maps.items():
            step = signals["heads"][head.name][name]["step"]
            assert step <= min(MAX_STEP, max(1, np.abs(values).max()) / LEVELS)
            for query in inspection.queries:
                shown = step * np.array(rows[head.name, query]["maps"][name])
                expected = values[query, : query + 1]
                np.testing.assert_allclose(shown, expected, atol=step / 2 + 1e-5)


def test_a_chart_is_drawn_without_a_browser() -> None:
    import vl_convert

    inspection = made("_b_a|ba", [0, 1, 0, 0.9, 0.02, 0.9, 0.9], 1)
    drawn = vl_convert.vega_to_svg(chart(inspection, inspection.heads, list(range(7))))
    labels = re.findall(r'aria-label="(\d: [^"]+)"', drawn)
    assert labels[1] == "1: b, attention 1.00, position score −2.50, gate 1.00, position 3.72"
    assert len(labels) == 7
    assert_has(drawn, "Query 6, a, attends to b at 1 (1.00).", "wrong, predicted a.")


def test_a_page_of_paper_size_is_small() -> None:
    rng = np.random.default_rng(0)
    seen = np.tri(512, dtype=np.float32)[::4]
    heads = [
        Head(n // 8, n % 8, {m: (most * rng.random(seen.shape) * seen).astype(np.float32)
                             for m, most in (("attention", 1), ("position score", 5),
                                             ("gate", 1), ("position", 400))}, 0.5)
        for n in range(48)
    ]  # fmt: skip
    queries = list(range(0, 512, 4))
    answers = [Answer(q, "a", 0.5, "a", 0.5, True) for q in queries]
    inspection = made("ab" * 256, [1] * 512, 0, heads=heads, queries=queries, answers=answers)
    text = fragment(inspection)
    _, _, signals = chart_in(text)
    assert len(text.encode()) < 300_000
    assert len(signals["heads"]) == 8
    assert len(signals["queries"]) >= 7
    assert f"Shown are 8 of 48 heads and {len(signals['queries'])} of 512 queries" in text


def test_a_token_cannot_end_the_page() -> None:
    evil = "</script><b>&amp;"
    inspection = made("abcde", [1] * 5, 0, tokens=[evil, "<!--", '"', "'", "&"], pe=evil)
    text = fragment(inspection)
    _, data, _ = chart_in(text)
    assert data["tokens"][0]["token"] == evil
    assert evil not in text


def test_nan_outputs_are_shown_as_such(fake: Fake) -> None:
    folder = fake(pe=section("alibi"))
    weight = "blocks.1.attention.qkv.weight"
    edit_checkpoint(folder, lambda state: state["model"][weight].fill_(float("nan")))
    inspection = inspect_run(folder)
    assert not any(answer.correct for answer in inspection.answers)
    _, data, _ = chart_in(fragment(inspection))
    answers = [row["answer"] for row in data["rows"] if row["answer"]]
    assert all("(probability not a number): wrong" in answer for answer in answers)
    assert answers
    printed = [text.plain for text in lines(inspection, inspection.heads[-1], None, 100, True)]
    assert inspection.heads[-1].layer == 1
    assert any(text.startswith("attention") and "nan" in text for text in printed)
