"""``pe-lab results evaluations=true``: what pe-lab eval recorded, as tables over runs."""

import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from made import evaluate, made
from program import Here, assert_refused, csv_rows, succeeded

from pe_lab.core.errors import RunError
from pe_lab.evaluate.record import NAME, Evaluations
from pe_lab.store.run_folder import RunFolder


@pytest.fixture
def runs(here: Here) -> None:
    """rope with three seeds and cope with one, evaluated; alibi with one, not."""
    for seed in range(3):
        run = made("rope", seed)
        evaluate(run, "trained", {64: 0.1 * (seed + 1), 256: 0.4 + 0.01 * seed})
        evaluate(run, "pi", {64: 0.1 * (seed + 1)}, scale=1.0)
        evaluate(run, "pi", {256: 0.2 + 0.05 * seed}, scale=4.0)
        evaluate(run, "none", {64: 0.5}, split="sparse")
    evaluate(made("cope"), "trained", {512: 0.0625, 64: 0.03125})
    made("alibi")


def rows(here: Here, *words: str) -> list[dict[str, str]]:
    ended = succeeded(here("results", "evaluations=true", "format=csv", *words))
    return csv_rows(ended.out)


def row(found: list[dict[str, str]], **keys: Any) -> dict[str, str]:
    (one,) = (r for r in found if all(r[key] == str(value) for key, value in keys.items()))
    return one


def cells(here: Here, *words: str) -> list[list[str]]:
    """The rows of the tables, their heads too; the best in **."""
    out = here("results", "evaluations=true", "format=markdown", *words).out.replace("\\", "")
    lines = [line for line in out.splitlines() if line[:2] == "| " and "---" not in line]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_tables_of_runs_stay_and_one_line_tells(here: Here, runs: None) -> None:
    message = "4 runs evaluated by pe-lab eval: pe-lab results runs_dir=runs evaluations=true"
    out = here("results").out
    assert out.splitlines()[-1] == message
    ended = here("results", "format=csv", "where=pe = rope and seed < 1")
    assert "'where=pe = rope and seed < 1' runs_dir=runs evaluations=true" in ended.err
    for path in Path("runs").rglob(NAME):
        path.unlink()
    assert here("results").out == out.removesuffix(f"{message}\n")
    assert "none of these runs was evaluated" in here("results", "evaluations=true").out


def test_means_over_seeds_by_encoding_and_length(here: Here, runs: None) -> None:
    found = rows(here)
    values = [0.2, 0.25, 0.3]
    one = row(found, encoding="pi", length=256)
    assert (one["task"], one["split"], one["in place of"]) == ("flipflop", "in_domain", "rope")
    assert (one["n"], one["seeds"], float(one["k"])) == ("3", "0 1 2", 4.0)
    assert float(one["mean"]) == pytest.approx(0.25)
    assert float(one["sd"]) == pytest.approx(statistics.stdev(values))
    assert float(row(found, encoding="pi", length=64)["k"]) == 1
    assert row(found, encoding="rope (trained)", length=64)["k"] == ""
    alone = row(found, encoding="cope (trained)", length=512)
    assert (alone["mean"], alone["sd"], alone["n"]) == ("0.0625", "", "1")
    assert row(found, encoding="none", split="sparse")["mean"] == "0.5"
    # Nothing was measured there.
    assert not [r for r in found if r["encoding"].startswith("cope") and r["length"] == "256"]


def test_a_table_for_each_split_with_a_column_for_each_length(here: Here, runs: None) -> None:
    out = here("results", "evaluations=true", "spread=sd").out
    titles = [line.strip() for line in out.splitlines() if "error in %" in line]
    assert titles == ["flipflop, in_domain: error in %", "flipflop, sparse: error in %"]
    head, *body = cells(here, "spread=sd")
    assert head == ["encoding", "in place of", "n", "64", "256", "512"]
    named = {line[0]: line for line in body}
    assert named["pi"][1:] == ["rope", "3", "20.0 ± 10.0", "25.0 ± 5.0", "-"]
    assert named["cope (trained)"][3:] == ["3.12", "-", "6.25"]
    assert "scale k of pi: 1 at 64, 4 at 256" in out
    order = [line[0] for line in body if line[0] in ("rope (trained)", "pi", "cope (trained)")]
    assert order == ["cope (trained)", "rope (trained)", "pi"]
    sorted_ = cells(here, "splits=in_domain", "sort=-256")
    assert [line[0] for line in sorted_[1:4]] == ["rope (trained)", "pi", "cope (trained)"]


def test_what_stands_in_place_of_one_encoding_stands_together(here: Here, runs: None) -> None:
    for encoding in ("trained", "pi"):
        evaluate(made("alibi"), encoding, {64: 0.5})
    named = [line[:2] for line in cells(here, "splits=in_domain")]
    assert named[1:] == [
        ["alibi (trained)", "alibi"], ["pi", "alibi"], ["cope (trained)", "cope"],
        ["rope (trained)", "rope"], ["pi", "rope"],
    ]  # fmt: skip


def test_filters_and_metrics(here: Here, runs: None) -> None:
    for word, column, expected in (
        ("pe=cope", "in place of", "cope"),
        ("where=seed>=1", "seeds", "1 2"),
        ("splits=sparse", "split", "sparse"),
    ):
        assert {r[column] for r in rows(here, word)} == {expected}
    assert len(rows(here, "by=seed", "splits=in_domain")) > len(rows(here, "splits=in_domain"))
    for metric in ("loss", "accuracy"):
        found = row(rows(here, f"metric={metric}"), encoding="pi", length=256)
        assert float(found["mean"]) == pytest.approx(0.75)
    content = json.loads(here("results", "evaluations=true", "format=json").out)
    assert (len(content["rows"]), content["metric"]) == (len(rows(here)), "error")
    for form, sign in (("markdown", "| encoding | in place of | n |"), ("latex", r"\toprule")):
        assert sign in here("results", "evaluations=true", f"format={form}").out


def test_rows_of_other_keys(here: Here) -> None:
    for width in (64, 128):
        for lr in (0.1, 0.2):
            run = made("rope", **{"model.d_model": width, "train.lr": lr})
            evaluate(run, "trained", {64: lr * width / 128})
    apart = rows(here)
    assert {r["differs"] for r in apart} == {
        "lr=0.1",
        "lr=0.2",
        "d_model=128 lr=0.1",
        "d_model=128 lr=0.2",
    }
    ended = here("results", "evaluations=true", "by=model.d_model", "format=csv")
    found = {r["model.d_model"]: float(r["mean"]) for r in csv_rows(ended.out)}
    assert found == {"64": pytest.approx(0.075), "128": pytest.approx(0.15)}


def test_what_was_measured_several_times_counts_once(here: Here) -> None:
    run = made("rope")
    evaluate(run, "pi", {64: 0.5}, sequences=1000, error_generated=0.9)
    evaluate(run, "pi", {64: 0.25}, sequences=1000)
    evaluate(run, "pi", {64: 0.125}, sequences=100)
    evaluate(run, "pi", {64: 0.75}, scale=3.0, k=3.0)
    found = rows(here)
    assert [(r["encoding"], r["mean"], r["k"]) for r in found] == [
        ("pi", "0.25", ""), ("pi:k=3", "0.75", "3.0"),
    ]  # fmt: skip
    (generated,) = (r for r in rows(here, "metric=error_generated") if r["encoding"] == "pi")
    assert generated["mean"] == "0.9"


def test_the_best_is_marked_on_the_same_sequences_only(here: Here) -> None:
    for seed in range(4):
        run, more = made("rope", seed), 0.001 * seed
        evaluate(run, "trained", {64: 0.5 + more, 128: 0.5 + more})
        evaluate(run, "pi", {64: 0.1 + more})
        evaluate(run, "pi", {128: 0.1 + more}, sequences=200)
    best = {r["length"]: r["best"] for r in rows(here) if r["encoding"] == "pi"}
    assert best == {"64": "true", "128": "false"}


def one_sentence(here: Here, path: Path, part: str) -> None:
    """Each command names the file with this reason, and shows the other runs."""
    ended = here("results", "evaluations=true", "format=csv")
    assert (ended.status, ended.err.count("\n"), "0.25" in ended.out) == (0, 1, True)
    assert f"{path}{part}" in ended.err
    assert "cope" not in ended.out
    assert here("results").status == 0
    ended = here("runs", "check=true")
    assert (ended.status, f"{path}{part}" in ended.out) == (1, True)
    assert here("report", "inspect=none").status == 0
    assert f"{path}{part}" in Path("runs/report/index.html").read_text()
    with pytest.raises(RunError, match=re.escape(f"{path}{part}")):
        Evaluations(path.parent)


def test_evaluations_of_another_run_are_refused(here: Here) -> None:
    evaluate(made("rope"), "pi", {64: 0.25})
    evaluate(made("rope", 1), "pi", {64: 0.75})
    path = made("cope").path / NAME
    theirs = made("rope", 1)
    shutil.copy(theirs.path / NAME, path)
    one_sentence(here, path, f" belongs to run {theirs.identity}: remove ")
    # A row of it among those of the run.
    path.unlink()
    evaluate(RunFolder(path.parent), "pi", {64: 0.5})
    row = (theirs.path / NAME).read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(row + path.read_bytes())
    one_sentence(here, path, " cannot be read (it does not fit its digest")


def test_a_torn_last_line_is_one_sentence(here: Here) -> None:
    evaluate(made("rope"), "pi", {64: 0.25})
    run = made("cope")
    evaluate(run, "pi", {64: 0.5})
    with (run.path / NAME).open("a") as file:
        file.write('{"run": ')
    one_sentence(here, run.path / NAME, " cannot be read (")


def test_scales_that_differ_by_little_are_apart(here: Here) -> None:
    run = made("rope")
    for k in (1.2345678, 1.2345679):
        evaluate(run, "pi", {64: k - 1}, k=k)
    assert [(r["encoding"], float(r["mean"])) for r in rows(here)] == [
        (f"pi:k={k}", pytest.approx(k - 1)) for k in (1.2345678, 1.2345679)
    ]


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("metric=errors", ["metric=errors", "did you mean error?"]),
        ("splits=in_domian", ["splits=in_domian", "in_domain"]),
        ("sort=128", ["sort=128", "256"]),
        ("by=model.d_modle", ["by=", "model.d_model"]),
    ],
)
def test_one_sentence(here: Here, runs: None, word: str, parts: list[str]) -> None:
    assert_refused(here("results", "evaluations=true", word), *parts)
