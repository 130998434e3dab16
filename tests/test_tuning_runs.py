"""Runs on which a suite chose the learning rate: recognised, named by results, left out by
compare."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from made import evaluate, made, unfinished
from markupsafe import escape
from program import Here, assert_has, assert_refused, csv_rows, succeeded
from suites import suite_of_made

from pe_lab.cli.train import checked_jobs
from pe_lab.config.schema import plain
from pe_lab.results.frame import read_runs
from pe_lab.results.leaderboard.entries import tuning_column
from pe_lab.results.leaderboard.rows import suite_rows
from pe_lab.results.reader import Record, Setting, flat
from pe_lab.results.selection import read_file_of_runs
from pe_lab.results.suite import load_suite
from pe_lab.train.plan import build_task

NOTE = "(seeds 1000,1001) by whose errors suite mine chose the learning rate"


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A suite of the runs that these tests make, and the words that name it."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    return ["--config-dir", str(suite_of_made(tmp_path / "mine"))]


def suite_runs(pe: str, fresh: list[float], tuning: float, lr: float = 0.003) -> None:
    """Runs on seeds 0, 1, .. with these errors, and on the tuning seeds with one error."""
    for seed, error in [*enumerate(fresh), (1000, tuning), (1001, tuning)]:
        errors = {"in_domain": 0.0, "sparse": error}
        made(pe, seed, errors=errors, **{"train.lr": lr})


def test_exactly_the_runs_of_the_leaderboards_phase_are_recognised(mine: list[str]) -> None:
    changes: dict[str, dict[str, Any]] = {
        "as_it_is": {},
        "fresh": {"seed": 0},
        "rate": {"train.lr": 0.012},
        "no_rate": {"train.lr": 0.01},
        "longer": {"train.steps": 800},
        "task": {"task.length": 32},
        "batch": {"train.batch_size": 16},
        "model": {"model.d_model": 128},
    }
    for pe, changed in changes.items():
        made(pe, **{"seed": 1000, **changed})
    unfinished("failed", "failed", 1001)
    runs = read_runs(config_dir=mine[1])
    rows = suite_rows(Path("runs"), load_suite("mine", Path(mine[1])))
    found = runs.filter(tuning_of="mine")["pe"].to_list()
    assert set(found) == set(rows.filter(phase="tuning")["pe"])
    assert sorted(found) == ["as_it_is", "failed", "model", "rate"]
    assert read_runs()["tuning_of"].null_count() == len(runs), "v1 has no such task"
    assert read_runs(where="tuning_of=null", config_dir=mine[1])["pe"].to_list() == sorted(
        {*changes, "failed"} - {*found}
    )


def test_a_run_of_a_shipped_suite_is_recognised() -> None:
    suite = load_suite("v1")
    words = (*suite.common, *suite.tasks["parity"].words, *suite.words("rope"), "train.lr=0.006")
    (job,) = checked_jobs(list(words))
    config = plain(job)
    contents = build_task(config["task"]).contents()

    def record(seed: int, **keys: Any) -> Record:
        setting = Setting("", {**flat(config), **keys}, [], config, contents)
        return Record({"pe": "rope", "seed": seed}, {}, setting)

    records = [
        record(1000),
        record(1001, **{"seed.init": 1001}),
        record(1000, **{"seed.init": 3}),
        record(0),
        Record({"pe": "rope", "state": "broken"}, {}, None),
    ]
    assert tuning_column(records).to_list() == ["v1", "v1", None, None, None]


def test_results_name_the_runs_that_share_a_row(here: Here, mine: list[str]) -> None:
    suite_runs("rope", [0.1, 0.2, 0.3], tuning=0.0)
    suite_runs("cope", [], tuning=0.0)
    note = f"rows pool 2 runs {NOTE} with others: "
    out = here("results", *mine).out
    assert_has(
        out,
        f'{note}where="tuning_of=null" leaves them out',
        "pe-lab leaderboard suite=mine keeps them apart",
    )
    assert numbers(here("results", "format=csv", *mine), "rope") == ("5", "0 1 2 1000 1001")
    alone = here("results", "format=csv", "where=tuning_of=null", *mine)
    assert numbers(alone, "rope") == ("3", "0 1 2")
    assert "rows pool" not in alone.err
    assert "cope" not in alone.out
    # Rows of all encodings: those of cope share one, too.
    assert f"rows pool 4 runs {NOTE}" in here("results", "by=train.lr", *mine).out
    assert "rows pool" not in here("results", "by=pe,seed", *mine).out
    assert "rows pool" not in here("results").out


def test_the_condition_of_the_note_keeps_that_of_the_user(here: Here, mine: list[str]) -> None:
    suite_runs("rope", [0.1, 0.2], tuning=0.0)
    suite_runs("cope", [0.1], tuning=0.0)
    out = here("results", "where=pe=rope or seed=0", *mine).out
    where = "(pe=rope or seed=0) and tuning_of=null"
    assert f"rows pool 2 runs {NOTE} with others: where='{where}' leaves them out" in out
    assert read_runs(where=where, config_dir=mine[1])["seed"].to_list() == [0, 0, 1]


def test_the_report_names_them_where_they_share_a_row(here: Here, mine: list[str]) -> None:
    suite_runs("rope", [0.1, 0.2], tuning=0.0)
    page = Path("runs/report/index.html")
    assert here("report", "where=pe=rope", *mine).status == 0
    where = escape("where='(pe=rope) and tuning_of=null'")
    note = f"In the table and the charts rows pool 2 runs {NOTE} with others: "
    assert f"{note}{where} leaves" in page.read_text()
    assert note in here("report", "format=svg", *mine).out
    assert here("report", "where=tuning_of=null", *mine).status == 0
    assert "rows pool" not in page.read_text()


def test_evaluations_name_them_too(here: Here, mine: list[str]) -> None:
    for seed in (0, 1000, 1001):
        evaluate(made("rope", seed), "trained", {64: 0.1})
    out = here("results", "evaluations=true", *mine).out
    assert f"rows pool 2 runs {NOTE} with others" in out
    assert here("report", *mine).status == 0
    page = Path("runs/report/index.html").read_text()
    note = f"In the table and the charts rows pool 2 runs {NOTE} with others"
    assert page.count(note) == 2, "of the runs, and of what was measured since"


def test_pairs_are_of_fresh_seeds(here: Here, mine: list[str]) -> None:
    suite_runs("cope", [0.1, 0.2, 0.3], tuning=0.0)
    suite_runs("rope", [0.2, 0.4, 0.6], tuning=0.9)
    suite_runs("cope", [], tuning=0.0, lr=0.012)
    suite_runs("rope", [], tuning=0.9, lr=0.012)
    done = here("compare", "a=cope", "b=rope", "format=csv", *mine)
    rows = csv_rows(done.out)
    assert {row["seeds"] for row in rows} == {"0 1 2"}, "one pair of settings"
    assert float(rows[-1]["difference"]) == pytest.approx(-0.2)
    assert f"left out: 8 runs {NOTE}" in done.err
    both = here("compare", "pe=cope,rope", "task=flipflop", *mine).out
    assert "Seeds 0,1,2; settings" in both
    assert both.count(f"left out: 8 runs {NOTE}") == 1
    with_them = here("compare", "a=cope", "b=rope", "format=csv")
    assert ("0 1 2 1000 1001" in with_them.out, "left out" in with_them.err) == (True, False)
    assert_refused(
        here("compare", "a=cope", "b=rope", "where=seed>999", *mine),
        f"no finished run of pe=cope among these: nothing to pair; left out: 8 runs {NOTE}",
    )


def test_our_mean_beside_a_published_number_is_of_fresh_seeds(here: Here, mine: list[str]) -> None:
    suite_runs("cope", [0.1, 0.2, 0.3], tuning=0.0)
    suite_runs("alibi", [0.1], tuning=0.0)  # in no published table of this task
    done = here("compare", "format=csv", *mine)
    rows = [row for row in csv_rows(done.out) if row["ours"]]
    of_sparse = {(row["n"], row["ours"]) for row in rows if row["split"] == "sparse"}
    assert [(n, round(float(ours), 9)) for n, ours in of_sparse] == [("3", 0.2)]
    assert f"left out: 2 runs {NOTE}" in done.err
    assert "left out: 2 runs" in here("compare", "task=flipflop", *mine).out
    assert "left out" not in here("compare", "task=flipflop", "where=tuning_of=null", *mine).out


def test_a_file_of_runs_keeps_which_were_of_tuning(here: Here, mine: list[str]) -> None:
    suite_runs("rope", [0.1, 0.2], tuning=0.0)
    runs = read_runs(config_dir=mine[1])
    runs.write_parquet("runs.parquet")
    runs.drop("tuning_of").write_parquet("earlier.parquet")
    shutil.rmtree("runs")
    assert f"rows pool 2 runs {NOTE}" in here("results", "file=runs.parquet").out
    assert "left out: 2 runs" in here("compare", "file=runs.parquet", "task=flipflop").out
    assert "rows pool" not in succeeded(here("results", "file=earlier.parquet")).out
    assert read_file_of_runs("earlier.parquet").schema["tuning_of"] == pl.String


def numbers(done: Any, pe: str) -> tuple[str, str]:
    """Of the split sparse of an encoding: n, and the seeds."""
    (row,) = (row for row in csv_rows(done.out) if (row["pe"], row["split"]) == (pe, "sparse"))
    return row["n"], row["seeds"]
