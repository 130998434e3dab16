"""Su's table: what it is made of, when it agrees; the command does only what is missing."""

import csv
from pathlib import Path

import pytest
from program import Here, assert_refused, succeeded

from pe_lab.results.presentation.comparisons import (
    ORDER,
    TEXT,
    extrapolation_tables,
    published_accuracy,
)
from pe_lab.results.published import extrapolated

TINY = [
    "train.steps=2", "train.warmup=1", "train.batch_size=2", "train.length=8", "eval.sequences=2",
    "eval.quick_sequences=2", "model.n_layers=2", "model.d_model=8", "hydra/launcher=basic",
    "tracker.wandb.mode=disabled",
]  # fmt: skip


def published(seeds=2, change=lambda row, split, share: share):
    """Su's figures as if they were ours."""
    return {
        (row.pe, split): [change(row.pe, split, (published_accuracy(row, split) or 1) / 100)]
        * seeds
        for row in extrapolated()
        for split in TEXT
    }


def cells(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_the_rows_are_the_issues():
    rows = {row.pe: row for row in extrapolated()}
    assert len(rows) == len(extrapolated()) == 17
    assert set(ORDER) <= rows.keys()
    assert [published_accuracy(rows["rerope + logn"], split) for split in TEXT] == [
        49.40,
        85.12,
        49.07,
    ]
    assert {row.trained for row in extrapolated()} == {"rope", "rope + logn", "hfwa"}
    for row in extrapolated():
        assert len(row.published) in (0, len(TEXT))


def test_his_own_numbers_agree_with_his_orders():
    table, orders = (cells(sheet) for sheet in extrapolation_tables(published()))
    assert table[2] == [
        "pi", "49.41 ± 0.00", "49.41", "15.04 ± 0.00", "15.04", "13.54 ± 0.00", "13.54"
    ]  # fmt: skip
    assert table[9][:3] == ["yarn", "1.00 ± 0.00", "-"]
    assert len(orders) == 2 + 2 * 4
    assert all(line[-1] == "agrees, 2 of 2 seeds" for line in orders)
    assert orders[0] == [
        "rope", "as trained > 8 x, repeated", "+25.24", "+25.24", "agrees, 2 of 2 seeds"
    ]  # fmt: skip
    assert orders[2][:4] == [
        "rerope + logn > ntk_mixed + logn",
        "8 x, repeated",
        "+16.21",
        "+16.21",
    ]


def test_one_number_changes_the_orders_it_stands_in():
    measured = published(change=lambda row, split, share: 0.9 if row == "ntk_fixed" else share)
    verdicts = {tuple(line[:2]): line[-1] for line in cells(extrapolation_tables(measured)[1])}
    wrong = {key for key, verdict in verdicts.items() if verdict == "disagrees, 0 of 2 seeds"}
    assert wrong == {("ntk_mixed + logn > ntk_fixed", where) for where in list(TEXT.values())[1:]}
    assert list(verdicts.values()).count("agrees, 2 of 2 seeds") == 8


def test_seeds_are_counted_one_by_one():
    measured = published(3)
    measured["pi", "long_x8"] = [0.9, 0.0, 0.0]
    assert cells(extrapolation_tables(measured)[1])[-1][2:] == [
        "+9.62",
        "-6.84",
        "disagrees, 2 of 3 seeds",
    ]
    measured["pi", "long_x8"] = measured["rope", "long_x8"]
    assert cells(extrapolation_tables(measured)[1])[-1][3:] == [
        "+0.00",
        "no difference, 0 of 3 seeds",
    ]


@pytest.mark.extended
def test_the_command_does_what_is_missing(here: Here, tmp_path: Path) -> None:
    words = ["extrapolate", "task=text", "seed=0", *TINY]
    succeeded(here(*words))
    runs = sorted((tmp_path / "runs").glob("text/*/seed0-*"))
    assert [run.parent.name for run in runs] == ["hfwa", "rope", "rope"]
    records = {run: (run / "evaluations.jsonl").read_text() for run in runs}
    # Each file ends with the digest of its rows.
    lines = sum(text.count("\n") for text in records.values())
    assert lines == 3 * len(extrapolated()) + len(records)
    (table,) = (tmp_path / "runs" / "evaluations").glob("*.csv")
    numbers = list(csv.DictReader(table.open()))
    assert len(numbers) == 3 * len(extrapolated())
    shares = {(n["row"], n["split"]): 100 * (1 - float(n["error"])) for n in numbers}
    written = table.with_suffix(".md").read_text().replace("\\_", "_")
    for row in extrapolated():
        shown = [f"{shares[row.pe, split]:.2f}" for split in TEXT]
        (line,) = (x for x in written.splitlines() if x.startswith(f"| {row.pe} | {shown[0]} "))
        assert line.split(" | ")[1::2] == shown
    # At the trained length nothing has been changed.
    assert (
        len({shares[row.pe, "in_domain"] for row in extrapolated() if row.trained == "rope"}) <= 2
    )

    (runs[0] / "summary.json").unlink()
    made = {run: (run / "checkpoint.pt").stat().st_mtime_ns for run in runs}
    assert "2 jobs, 2 of them finished before" in succeeded(here(*words)).out
    changed = [run for run in runs if (run / "checkpoint.pt").stat().st_mtime_ns != made[run]]
    assert changed == [runs[0]]
    for run in runs[1:]:
        assert (run / "evaluations.jsonl").read_text() == records[run]


@pytest.mark.extended
def test_variables_in_filler(here: Here, tmp_path: Path) -> None:
    words = [word for word in TINY if not word.startswith("train.length")]
    succeeded(here("extrapolate", "task=needle", "task.length=32", "seed=0", *words, "format=csv"))
    (table,) = (tmp_path / "runs" / "evaluations").glob("*.csv")
    numbers = list(csv.DictReader(table.open()))
    splits = {"in_domain", "long_x4", "long_x8", "long_x16"}
    found = {(n["row"], n["split"]) for n in numbers}
    assert found == {(row.pe, split) for row in extrapolated() for split in splits}
    assert "no source has this table" in table.with_suffix(".md").read_text()


def test_with_gated_attention_units(here: Here) -> None:
    """As its help has it. The words are right: only the file is not there."""
    words = ["model=gau", "~model.n_heads=2", "task.file=nowhere.txt"]
    assert_refused(here("extrapolate", *words), "task.file=nowhere.txt cannot be read")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["task=flipflop"], "task=flipflop: it is for task=text and task=needle; pe-lab eval"),
        (["pe=cope"], "extrapolate pe=cope: its encodings and splits are fixed; leave pe out"),
        (["pe.base=5"], "extrapolate pe.base=5: its encodings and splits are fixed"),
        (["experiment=small/flipflop"], "leave experiment out, pe-lab eval measures other ones"),
        (["-m"], "extrapolate -m: keys have no dashes"),
        (["format=pdf"], "format=pdf"),
        (["task.splits={}"], "extrapolate task.splits={}: its encodings and splits are fixed"),
        (["train.step=3"], "train.step"),
        (["train.steps=2,3"], "of one setting over its seeds, and these words have several"),
        (["task.splits.long_x8.length=64"], "leave task.splits.long_x8.length out"),
        (["++task.splits.repeated_x8.period=9"], "its encodings and splits are fixed"),
        (["eval.skip_too_long=true"], "leave eval.skip_too_long out"),
        (["task.period=64"], "leave task.period out"),
        (["task.file=nowhere.txt"], "task.file=nowhere.txt cannot be read"),
    ],
)
def test_bad_words(here: Here, tmp_path: Path, words: list[str], complaint: str) -> None:
    assert_refused(here("extrapolate", *words), complaint)
    assert not (tmp_path / "runs").exists()
