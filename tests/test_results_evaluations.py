"""``pe-lab results evaluations=true``: what pe-lab eval recorded, as tables over runs."""

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
    assert row(found, encoding="none", split="sparse")["mean"] == "0.5"
    # Nothing was measured there.
    assert not [r for r in found if r["encoding"].startswith("cope") and r["length"] == "256"]


def test_a_table_for_each_split_with_a_column_for_each_length(here: Here, runs: None) -> None:
    out = here("results", "evaluations=true", "spread=sd").out
    head, *body = cells(here, "spread=sd")
    assert head == ["encoding", "in place of", "n", "64", "256", "512"]
    named = {line[0]: line for line in body}
    assert named["pi"][1:] == ["rope", "3", "20.0 ± 10.0", "25.0 ± 5.0", "-"]
    assert named["cope (trained)"][3:] == ["3.12", "-", "6.25"]
    assert "scale k of pi: 1 at 64, 4 at 256" in out


def test_filters_and_metrics(here: Here, runs: None) -> None:
    for word, column, expected in (
        ("pe=cope", "in place of", "cope"),
        ("where=seed>=1", "seeds", "1 2"),
        ("splits=sparse", "split", "sparse"),
    ):
        assert {r[column] for r in rows(here, word)} == {expected}
    assert len(rows(here, "by=seed", "splits=in_domain")) > len(rows(here, "splits=in_domain"))
    found = row(rows(here, "metric=loss"), encoding="pi", length=256)
    assert float(found["mean"]) == pytest.approx(0.75)


def test_rows_of_other_keys(here: Here) -> None:
    for width in (64, 128):
        for lr in (0.1, 0.2):
            run = made("rope", **{"model.d_model": width, "train.lr": lr})
            evaluate(run, "trained", {64: lr * width / 128})
    assert len(rows(here)) == 4
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


def test_evaluations_of_another_run_are_refused_and_the_others_shown(here: Here) -> None:
    evaluate(made("rope"), "pi", {64: 0.25})
    theirs = made("rope", 1)
    evaluate(theirs, "pi", {64: 0.75})
    path = made("cope").path / NAME
    shutil.copy(theirs.path / NAME, path)
    ended = here("results", "evaluations=true", "format=csv")
    assert (ended.status, ended.err.count("\n")) == (0, 1)
    assert f"{path} belongs to run {theirs.identity}" in ended.err
    assert ("0.5" in ended.out, "cope" in ended.out) == (True, False)
    assert here("results").status == 0
    ended = here("runs", "check=true")
    assert (ended.status, str(path) in ended.out) == (1, True)
    assert here("report", "inspect=none").status == 0
    assert str(path) in Path("runs/report/index.html").read_text()
    with pytest.raises(RunError, match=re.escape(str(path))):
        Evaluations(path.parent)


def test_one_sentence(here: Here, runs: None) -> None:
    for word in ("metric=errors", "splits=in_domian", "sort=128", "by=model.d_modle"):
        assert_refused(here("results", "evaluations=true", word), word.partition("=")[2])
