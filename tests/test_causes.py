"""What docs/why.md says, computed again from the diagnoses that ship."""

import json
import math

import polars as pl
import pytest

from benchmarks.planted import ABSTAINS, PLANTS, UNSEEN
from docs import causes
from pe_lab.explain.cells import cells_of
from pe_lab.explain.verdict import fails
from pe_lab.results import verdicts
from pe_lab.results.suite import load_suite

PAGE = causes.PAGE.read_text("utf-8")


@pytest.fixture(scope="module")
def cells():
    rows, _ = verdicts.read(causes.FILE, load_suite("v1"))
    return {(cell.task, cell.pe): cell for cell in cells_of(verdicts.diagnosed(rows))}


def failing(cells, task=None, pe=None):
    """The cells of which most seeds learn the task and some fail."""
    return [
        cell
        for (of_task, of_pe), cell in cells.items()
        if task in (None, of_task) and pe in (None, of_pe)
        if cell.verdict.cause not in ("not learned", "generalises")
    ]


def share(cell, name):
    return round(100 * cell.verdict.shares[name])


def test_the_tables_are_those_of_the_files(cells):
    assert causes.written([*cells.values()]) in PAGE, "run python -m docs.causes --tables"
    assert causes.planted() in PAGE, "run python -m docs.causes --tables"


def test_every_cell_has_five_seeds(cells):
    assert {len(cell.seeds) for cell in cells.values()} == {causes.SEEDS}
    assert set(cells) == {(task, entry) for task in causes.TASKS for entry in causes.ENTRIES}


def test_the_plants_are_counted_and_few_verdicts_are_wrong():
    found = json.loads(causes.PLANTED.read_text("utf-8"))
    for task, plants in (("flipflop", PLANTS), ("recall", UNSEEN)):
        rows = found[task]["rows"]
        assert [(row["plant"], row["expected"]) for row in rows] == [
            (plant.name, plant.expected) for plant in plants
        ]
        verdicts_ = [(row["expected"], *one) for row in rows for one in row["verdicts"].items()]
        wrong = sum(n for right, said, n in verdicts_ if said not in {right, *ABSTAINS})
        assert (found[task]["wrong"], found[task]["of"]) == (wrong, 5 * len(plants))
        assert wrong <= 0.05 * found[task]["of"]


def test_point_1_attention_on_the_source_restores(cells):
    low = [c for c in failing(cells) if share(c, "oracle") < 79 and c.task != "counting"]
    assert [cell.verdict.cause for cell in low] == ["cannot be diagnosed"] * 4
    counting = [cell.verdict.cause for cell in failing(cells, "counting")]
    assert (len(counting), counting.count("cannot be diagnosed")) == (7, 6)


def test_points_2_and_3_alibi_and_fox(cells):
    found = {task: cells[task, "alibi"].verdict.cause for task, pe in cells if pe == "alibi"}
    assert found["flipflop"] == found["sort"] == "its own penalty on distance"
    assert share(cells["sort", "alibi"], "usual penalty") == 82
    assert found["recall"] == "temperature"
    assert found["copy_unique"] == "mixed"
    for pe in ("alibi", "fox"):
        assert share(cells["flipflop", pe], "usual penalty") == 100


def test_point_5_the_number_of_keys_on_sort_and_needle(cells):
    found = {cell.pe for cell in failing(cells, "sort") if cell.verdict.cause == "number of keys"}
    assert found == {"path", "fire", "transformer_xl"}
    restored = [share(cells["sort", pe], "fewer keys") for pe in found]
    assert (min(restored), max(restored)) == (53, 66)
    for pe, by_log_n in (("t5", 100), ("none", 93)):
        cell = cells["needle", pe]
        assert (cell.split, cell.verdict.cause) == ("long_x16", "number of keys")
        assert round(100 * cell.mean("logits times log n", "restored")) == by_log_n


def test_points_4_and_6_larger_logits(cells):
    for task, pe, restored in (
        ("recall", "t5", 97), ("copy_unique", "t5", 99), ("recall", "fire", 67),
    ):  # fmt: skip
        assert share(cells[task, pe], "logits scaled") == restored
    assert all(share(cell, "logits scaled") <= 19 for cell in failing(cells, pe="rope"))
    on = [cell for cell in failing(cells) if cell.task in ("recall", "copy_unique")]
    flat = [cell for cell in on if share(cell, "logits scaled") >= 50]
    by_log_n = [round(100 * cell.mean("logits times log n", "restored")) for cell in flat]
    assert max(by_log_n) == 13


def test_points_7_to_9_rope_and_positions(cells):
    assert share(cells["flipflop", "rope"], "far keys masked") == 70
    assert share(cells["recall", "rope"], "far keys masked") == 52
    assert share(cells["needle", "rope"], "distances clamped") == 95
    needle = cells["needle", "rope"]
    assert round(100 * needle.mean("plain", "value")) == 57
    assert round(100 * needle.mean("without slow pairs", "value")) == 22
    copying = cells["copy_unique", "rope"]
    assert round(100 * copying.mean("plain", "value")) == 74
    assert round(100 * copying.mean("without slow pairs", "value")) == 46
    assert copying.mean("without slow pairs", "in_domain") < 0.01
    for task in ("selective_copy", "counting"):
        for kind in ("slow", "fast"):
            without = cells[task, "rope"].mean(f"without {kind} pairs", "in_domain")
            assert without > 0.5, (task, kind)
    for pe, restored in (("learned", 56), ("sinusoidal", 71)):
        assert share(cells["flipflop", pe], "positions clamped") == restored


def test_point_10_the_convolution(cells):
    for task in ("recall", "copy_unique"):
        assert [cells[task, pe].verdict.cause for pe in ("conv", "path")] == ["generalises"] * 2


def test_what_the_log_odds_lose(cells):
    for cell in failing(cells):
        if cell.split.endswith(("x4", "x3")):
            lost = cell.mean("count", "in_domain") - cell.mean("count", "value")
            assert 1.2 <= round(lost, 1) <= 1.6
    rope = [one.diagnosis.by_name["gap"] for one in cells["flipflop", "rope"].seeds]
    gaps = [row.value - row.in_domain for row in rope]
    assert (math.floor(min(gaps)), math.floor(max(gaps))) == (9, 21)


def test_none_and_larger_logits(cells):
    found = cells["recall", "none"]
    assert (found.verdict.fitting, share(found, "logits scaled")) == (3, 0)
    assert share(cells["sort", "none"], "logits scaled") == 7
    assert share(cells["needle", "none"], "logits scaled") == 70
    fit = [one for one in found.seeds if fails(one.diagnosis)]
    assert len(fit) == 3


def test_the_file_has_what_no_verdict_needs_left_out(cells):
    rows = pl.read_parquet(causes.FILE)
    assert "detail" not in set(rows["kind"])
    assert rows["seed"].unique().sort().to_list() == [0, 1, 2, 3, 4]
