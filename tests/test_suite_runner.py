"""``pe-lab suite``: tuning, scoring, what is missing, budget, cost."""

import json
import math
import os
import re
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import leaderboard_runs
import polars as pl
import pytest
from made import made
from program import Here, assert_refused, start, succeeded
from suites import COMMON, MODEL, TASK, folders, tiny_suite, written

from pe_lab.cli.main import main
from pe_lab.cli.train import arguments, checked_jobs
from pe_lab.config.choices import choices
from pe_lab.config.schema import plain, register_resolvers
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN, metric_names
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.entries import equal_time, relative_cost
from pe_lab.results.leaderboard.rows import suite_rows
from pe_lab.results.leaderboard.scores import once
from pe_lab.results.leaderboard.tuning import FAILED, chosen_rate
from pe_lab.results.suite import load_suite, task_digest
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.schema import sealed
from pe_lab.suite import runs as suite_module
from pe_lab.suite.runs import Base, Composer, Known, Phases, SuiteRun, trained_at
from pe_lab.suite.tables import Row, plan_table
from pe_lab.sweeps.launchers import register_choices
from pe_lab.train.plan import plan


@pytest.mark.parametrize(
    ("tuned", "chosen"),
    [
        ({0.001: [(0.2, 1.0)], 0.003: [(0.1, 2.0)]}, 0.003),
        # Ties go to the lower loss, then to the smaller rate.
        ({0.001: [(0.0, 0.3)], 0.003: [(0.0, 0.2)], 0.006: [(0.0, 0.2)]}, 0.003),
        ({0.001: [(0.0, 0.1), (0.4, 0.1)], 0.003: [(0.1, 0.1), (0.2, 0.1)]}, 0.003),
        # Failed runs are last, and of them alone none is chosen.
        ({0.001: [FAILED], 0.003: [(0.9, math.inf)]}, 0.003),
        ({0.001: [FAILED], 0.003: [FAILED]}, None),
    ],
)
def test_the_rate_with_the_lowest_mean_error_in_domain_is_chosen(
    tuned: dict[float, list[tuple[float, float]]], chosen: float | None
) -> None:
    assert chosen_rate(tuned) == chosen


def test_every_encoding_of_the_suite_has_a_relative_cost() -> None:
    costs = {entry: relative_cost(entry, 100) for entry in load_suite("v1").encodings}
    assert min(cost for cost in costs.values() if cost is not None) > 0.5
    assert None not in costs.values()
    assert relative_cost("mine", 100) is None


def test_equal_time_is_a_fixed_number_of_steps() -> None:
    assert equal_time("rope", 400, 64) == 400
    # 1.836 / 1.017 times as long.
    assert equal_time("path", 400, 64) == 222
    assert equal_time("mine", 400, 64) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "suite needs the name of a suite: pe-lab suite quick"),
        (["v0"], "unknown suite v0: choose from quick, v1, v2"),
        (["v1", "tasks=flip"], "tasks=flip: did you mean flipflop?"),
        (["v1", "phases=scores"], "phases=scores: did you mean score?"),
        (["v1", "budget=2"], "budget=2: give a number above 0 with its unit, like 90m, 2h or 1d"),
        (["v1", "train.steps=3"], "suite train.steps=3: "),
        (["v1", "force=true"], "suite force=true: "),
        (["v1", "hydra/sweeper=optuna"], "it has no effect here, leave it out"),
    ],
)
def test_wrong_requests(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", *words]) == UsageError.exit_status
    assert message in capsys.readouterr().err


RUNS = 4 + 2
"""Of an entry: rates and score seeds."""


def summaries(cwd: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in cwd.glob("runs/*/*/*/summary.json")]


def rates(cwd: Path, pe: str, tuning: bool) -> set[float]:
    """The rates of an encoding's tuning or score runs."""
    return {
        one["config"]["train"]["lr"]
        for one in summaries(cwd)
        if one["pe"] == pe and (one["seed"] == 1000) == tuning
    }


@pytest.mark.extended
def test_all_entries_are_tuned_and_scored_once(here: Here, tmp_path: Path) -> None:
    line = [*tiny_suite(tmp_path), "pe=alibi,lstm"]
    ended = succeeded(here(*line))
    assert len(folders(tmp_path)) == 2 * RUNS
    assert {one["names"]["tracker"] for one in summaries(tmp_path)} == {"none"}
    assert rates(tmp_path, "alibi", tuning=True) == {0.001, 0.003, 0.006, 0.012}
    assert len(rates(tmp_path, "alibi", tuning=False)) == 1
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/*/*")}
    again = succeeded(here(*line))
    assert "nothing is missing" in again.out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/*/*")} == before
    (path,) = tmp_path.glob("runs/flipflop/alibi/seed0-*/summary.json")
    path.write_text("{")
    again = here(*line)
    assert again.status == 1
    assert "damaged: flipflop alibi score lr" in again.out
    assert "1 run damaged: give pe-lab verify set_aside=true first" in again.err
    here("verify", "set_aside=true")
    assert here(*line).status == 0
    ended = here(*line, "phases=more_seeds")
    assert "no runs: more_seeds is for none and for yours" in ended.out


def test_the_rate_is_chosen_by_the_in_domain_error_alone(here: Here, tmp_path: Path) -> None:
    line = [*tiny_suite(tmp_path), "pe=none"]
    assert here(*line, "phases=tuning").status == 0
    for path in folders(tmp_path).values():
        found = json.loads((path / "summary.json").read_text())
        best = found["config"]["train"]["lr"] == 0.006
        for split, error in (("in_domain", 0.1 if best else 0.2), ("sparse", 0.9 if best else 0.0)):
            planted = {"error_low": 0.0, "error": error, "error_high": 1.0}
            found["metrics"] |= metric_names(split, planted)
        RunFolder(path).write_text("summary.json", sealed(found))
    ended = succeeded(here(*line))
    assert rates(tmp_path, "none", tuning=False) == {0.006}
    assert "look at it: pe-lab leaderboard suite=tiny --config-dir " in ended.out


def test_a_failed_run_is_listed_and_counts_against_its_entry(here: Here, tmp_path: Path) -> None:
    """Keys that are null stand for a value, and a failed run has recorded that value."""
    line = tiny_suite(tmp_path, [0.001, 0.003, 0.006, 1e30], common=["train.clip=null"])
    ended = here(*line, "pe=alibi", "phases=tuning")
    assert_refused(ended, "1 run not finished, listed above", status=1)
    said = "flipflop alibi tuning lr 1e+30 seed 1000: failed: "
    assert said in " ".join(ended.out.split())
    runs = suite_rows(Path("runs"), load_suite("tiny", tmp_path / "mine")).unique("run_id")
    assert runs.sort("lr").select("entry", "phase", "state").rows() == [
        *[("alibi", "tuning", "finished")] * 3,
        ("alibi", "tuning", "failed"),
    ]


def test_dry_says_what_is_missing_and_writes_nothing(here: Here, tmp_path: Path) -> None:
    line = tiny_suite(tmp_path)
    ended = succeeded(here(*line, "dry=true"))
    assert not (tmp_path / "runs").exists()
    rows = [
        line.split()
        for line in ended.out.splitlines()
        if line.count("│") > 1 and "flipflop" in line
    ]
    assert [row[3] for row in rows] == ["tuning", "score"]
    assert [int(row[7]) for row in rows] == [4 * 4, 4 * 2]


def test_the_cost_of_a_task_without_runs_is_not_known(here: Here, tmp_path: Path) -> None:
    ended = here(*tiny_suite(tmp_path), "pe=lstm,alibi", "dry=true")
    assert ended.status == 0, ended.err
    said = "cost of flipflop not known until a run of it is finished, counted as 0"
    assert ended.out.count(said) == 1


def test_the_cost_is_that_of_shipped_runs_of_the_entry_else_of_rope() -> None:
    suite = load_suite("v1")
    rows, _ = file.shipped_rows(suite)
    rows = rows.filter(split=IN_DOMAIN, task="flipflop", entry="rope")
    rows = rows.filter(pl.col("phase").is_in(["tuning", "score"]))
    step_s = (rows["train_s"] / rows["steps"]).median()
    last_s = rows["measure_s"].median()
    assert isinstance(step_s, float) and isinstance(last_s, float)  # noqa: PT018
    known = Known(suite, shipped=False)
    (config,) = checked_jobs(["task=flipflop", "pe=rope"])
    base = Base("flipflop", "rope", (), plan(config))
    assert known.seconds(base, 1000) == pytest.approx(1000 * step_s + last_s)
    mine = replace(base, entry="mine")
    assert known.seconds(mine, 1000) == known.seconds(base, 1000)


def test_a_pilot_that_was_faster_than_the_shipped_runs_is_believed() -> None:
    """Those of the quick suite shared their machine."""
    suite = load_suite("quick")
    (config,) = checked_jobs(["task=copy_unique", "pe=rope"])
    base = Base("copy_unique", "rope", (), plan(config))
    assert Known(suite, shipped=False).seconds(base, 1000) == suite.tasks["copy_unique"].seconds


def test_core_hours_are_of_all_threads() -> None:
    rows = [Row("flipflop", "tuning", runs=8, missing=2, run_s=1800.0, missing_s=3600.0)]
    table = plan_table(load_suite("v1"), rows, workers=2, threads=4)
    assert list(table.columns[-1].cells) == ["4.00", "4.00"]
    assert str(table.caption) == "30 min with 2 at a time"


def test_after_the_budget_no_run_is_begun(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here(*tiny_suite(tmp_path), "budget=0.000001s"))
    assert "the budget is over, 0.0 core-hours" in ended.out
    assert not folders(tmp_path)


@pytest.mark.extended
def test_an_encoding_of_the_users_is_an_entry(here: Here, tmp_path: Path) -> None:
    line = tiny_suite(tmp_path)
    yaml_file = tmp_path / "mine" / "pe" / "mine.yaml"
    yaml_file.parent.mkdir()
    yaml_file.write_text(choices("pe")["alibi"].read_text())
    assert here(*line, "pe=mine", "phases=tuning,score,more_seeds,longer").status == 0
    # Seeds 0 and 1 of both lengths, seed 2, and tuning.
    assert len(folders(tmp_path)) == RUNS + 1 + 2
    assert {one["pe"] for one in summaries(tmp_path)} == {"mine"}


@pytest.mark.extended
def test_runs_from_before_a_change_of_the_encoding_are_named(here: Here, tmp_path: Path) -> None:
    """They count, as the code is not part of a run's identity."""
    line = tiny_suite(tmp_path)
    assert here("new", "encoding", "fading", "to=mine").status == 0
    line.append("pe=fading")
    assert here(*line, "phases=tuning").status == 0
    with (tmp_path / "mine" / "fading.py").open("a") as file:
        file.write("# another version\n")
    assert (
        "4 finished runs made before the file of fading.Fading changed: their numbers are those "
        "of that code, and count; runs_dir=ANOTHER begins with none"
    ) in " ".join(here(*line, "dry=true").out.split())


@pytest.mark.extended
def test_capacity_is_trained_on_what_the_split_measures(here: Here, tmp_path: Path) -> None:
    line = [*tiny_suite(tmp_path), "pe=none"]
    assert here(*line, "phases=tuning,capacity").status == 0
    found = [one for one in summaries(tmp_path) if one["seed"] != 1000]
    trained = [
        (one["config"]["task"]["length"], one["config"]["task"]["p_ignore"]) for one in found
    ]
    assert sorted(trained) == sorted([(16, 0.98), (32, 0.8)] * 2)
    assert all(one["splits"].keys() == {"in_domain"} for one in found)


@pytest.mark.extended
def test_equal_parameters_and_equal_time(here: Here, tmp_path: Path) -> None:
    line = [*tiny_suite(tmp_path, more_seeds_for=["learned", "none", "lstm"]), "pe=learned,lstm"]
    ended = succeeded(here(*line, "phases=tuning,equal_time,equal_parameters"))
    assert "not run: lstm, equal_parameters on flipflop: its model has no d_ff" in ended.out
    found = [one for one in summaries(tmp_path) if one["config"]["model"].get("d_ff", 64) != 64]
    assert len(found) == 2
    (config,) = checked_jobs([*COMMON, *TASK, *MODEL, "pe=rope"])
    rope = sum(p.numel() for p in plan(config).model().parameters())
    # A unit more or less of d_ff are 2 x 16 weights and a bias.
    assert all(abs(one["metrics"]["params/total"] - rope) <= 33 / 2 for one in found)


@pytest.mark.extended
def test_shipped_runs_are_not_run_again(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [*tiny_suite(tmp_path), "pe=none"]
    assert here(*line).status == 0
    suite = load_suite("tiny", tmp_path / "mine")
    there = tmp_path / "tiny.parquet"
    file.write(suite_rows(tmp_path / "runs", suite), there)
    monkeypatch.setattr(file, "shipped", lambda name: there)
    chosen = rates(tmp_path, "none", tuning=False)
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    again = here(*line)
    assert "nothing is missing" in again.out
    assert not folders(tmp_path)
    monkeypatch.setattr(suite_module, "EVERY", 1)
    dry = succeeded(here(*line[:-1], "pe=none,learned", "phases=again", "dry=true"))
    assert re.search(r"again +│ +2 │ +2 │", dry.out)  # of learned no run ships
    assert "no runs" not in dry.out
    both = [*line[:-1], "pe=none,learned", "phases=again"]
    monkeypatch.setattr(suite_module, "EVERY", 10**9)
    assert "none of these is among them" in succeeded(here(*both)).out
    monkeypatch.setattr(suite_module, "EVERY", 1)
    succeeded(here(*both))
    assert sorted(one["seed"] for one in summaries(tmp_path)) == [0, 1]
    assert rates(tmp_path, "none", tuning=False) == chosen
    assert "nothing is missing" in here(*line, "phases=again").out
    table = succeeded(here("leaderboard", "suite=tiny", *line[2:4], "task=flipflop")).out
    assert table.count("(0 of 2 flips)") == 3  # in domain and two splits
    assert here(*line, "shipped=false").status == 0
    assert rates(tmp_path, "none", tuning=False) == chosen


def test_one_of_ten_cells_is_run_again() -> None:
    suite = load_suite("v2")
    cells = [*product(suite.tasks, suite.entries)]
    drawn = Phases(suite, SimpleNamespace())._is_drawn
    chosen = [drawn(SimpleNamespace(task=task, entry=entry)) for task, entry in cells]
    assert 0.07 < sum(chosen) / len(cells) < 0.13


def test_suite_and_leaderboard_take_the_same_result_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished before failed, shipped before made here: else the suite would score a rate that the
    leaderboard does not count."""
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "v1.parquet"
    monkeypatch.setattr(file, "shipped", lambda name: there)
    suite = load_suite("v1")
    run_id = "-".join(made("rope", 1000).path.parts[-3:])

    def shipped(*errors: float | None) -> None:
        found = [
            one
            for number, error in enumerate(errors)
            for one in leaderboard_runs.run(
                "rope", "flipflop", 1000, [error] * 7, run_id=run_id,
                state="failed" if error is None else "finished", revision=f"{number}", loss=0.0,
            )
        ]  # fmt: skip
        file.write(leaderboard_runs.rows(found), there)

    def both(local: float | None) -> tuple[float | None, float | None]:
        """Of the suite and of the leaderboard."""
        folder = made("rope", 1000, errors={"in_domain": local or 0.0}, loss=0.0)
        if local is None:
            (folder.path / "summary.json").unlink()
            folder.set_status("failed", 4, 400)
        run = SuiteRun("flipflop", "rope", "tuning", 0.003, 1000, 400, (), folder)
        measured = Known(suite, shipped=True).measured(run)
        state = "failed" if local is None else "finished"
        here = leaderboard_runs.run(
            "rope", "flipflop", 1000, [local] * 7, run_id=run.run_id, state=state
        )
        rows, _ = once(file.shipped_rows(suite)[0], leaderboard_runs.rows(here))
        (error,) = rows.filter(split="in_domain")["error"]
        assert measured is not None
        return (None if math.isinf(measured[0]) else measured[0]), error

    for of_shipped, local, counts in (
        ((0.25,), 0.5, 0.25), ((0.25, 0.125), 0.5, 0.25), ((0.25,), None, 0.25),
        ((None,), 0.5, 0.5), ((None,), None, None),
    ):  # fmt: skip
        shipped(*of_shipped)
        assert both(local) == (counts, counts), (of_shipped, local)


def test_a_score_without_tuning_is_refused(here: Here, tmp_path: Path) -> None:
    line = [*tiny_suite(tmp_path), "pe=none,alibi", "phases=score"]
    ended, dry = here(*line), succeeded(here(*line, "dry=true"))
    said = (
        "none on flipflop and 1 more: no rate is chosen, as runs of tuning are missing or failed: "
        "give phases=tuning,score, or leave it out of pe="
    )
    assert_refused(ended, said)
    assert not ended.out
    # What it will cost is said all the same.
    assert "core-hours" in dry.out
    assert f"refused without dry=true: {said}" in " ".join(dry.out.split())
    assert not folders(tmp_path)


def test_a_phase_without_runs_needs_no_tuning(here: Here, tmp_path: Path) -> None:
    # `learned` has no runs of more seeds, and nobody knows what this encoding costs.
    line = tiny_suite(tmp_path)
    (tmp_path / "mine" / "pe").mkdir()
    (tmp_path / "mine" / "pe" / "ours.yaml").write_text("_target_: pe_lab.pe.none.NoPE\n")
    ended = succeeded(here(*line, "pe=learned,ours", "phases=equal_time", "dry=true"))
    assert "ours, equal_time on flipflop: its cost is not known" in " ".join(ended.out.split())


def test_a_damaged_tuning_run_is_named(here: Here, tmp_path: Path) -> None:
    line = [*tiny_suite(tmp_path), "pe=none"]
    register_resolvers()
    register_choices()
    words = ["-m", "--config-dir", line[3], "hydra/launcher=basic", "tracker=none"]
    base = Composer(arguments(words), load_suite("tiny", Path(line[3]))).base("flipflop", "none")
    assert base is not None
    folder = base.run("tuning", 0.001, 1000).folder.path
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{not json")
    said = "no rate is chosen, as a run is damaged: flipflop none tuning lr 0.001 seed 1000: "
    ended = here(*line, "phases=score")
    assert_refused(ended, f"none on flipflop: {said}")
    assert "force=true" in ended.err


@pytest.mark.parametrize("dry", ["dry=false", "dry=true"])
def test_what_is_no_folder_of_runs(here: Here, tmp_path: Path, dry: str) -> None:
    (tmp_path / "file").write_text("")
    line = tiny_suite(tmp_path)
    for runs_dir, said in (
        ("file", "is not a folder: choose another"),
        ("file/runs", "cannot be read (Not a directory): choose another folder"),
    ):
        ended = here(*line, "pe=none", f"runs_dir={runs_dir}", dry)
        assert_refused(ended, f"runs_dir={runs_dir} {said}")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"generalises": {"spars": 0.02}}, "the task has no split spars: did you mean sparse?"),
        ({"digest": "00000000"}, "the task flipflop composes to "),
    ],
)
def test_another_task_is_refused(
    here: Here, tmp_path: Path, task: dict[str, Any], said: str
) -> None:
    assert_refused(here(*tiny_suite(tmp_path, **task), "dry=true"), said)


@pytest.mark.extended
def test_it_goes_on_after_a_signal(here: Here, tmp_path: Path) -> None:
    words = [word if "steps" not in word else "train.steps=60" for word in TASK]
    line = [*tiny_suite(tmp_path, words=words), "train.checkpoint_every=20", "pe=none"]
    pool = ["hydra/launcher=joblib" if "launcher" in word else word for word in line]
    process = start(*pool, "hydra.launcher.n_jobs=2", cwd=tmp_path)
    process.wait_for(lambda: written(tmp_path))
    process.send(signal.SIGTERM)
    assert process.status == 128 + signal.SIGTERM
    said = (tmp_path / "stdout").read_text()
    assert "run the same command to continue" in said
    (row,) = [line.split("│") for line in said.splitlines() if "flipflop │ tuning" in line][1:]
    # Stopped runs have not failed.
    assert row[6].strip() == "0"
    assert int(row[7]) > 0
    assert here(*line).status == 0
    assert len(folders(tmp_path)) == RUNS


@pytest.mark.extended
def test_workers_stay_over_all_phases(here: Here, tmp_path: Path) -> None:
    line = [word for word in tiny_suite(tmp_path) if "launcher" not in word]
    assert here(*line, "pe=none", "hydra.launcher.n_jobs=2").status == 0
    status = [json.loads((path / "status.json").read_text()) for path in folders(tmp_path).values()]
    assert len(status) == RUNS
    assert 1 <= len({one["pid"] for one in status} - {os.getpid()}) <= 2


@pytest.mark.extended
def test_capacity_of_v1_is_what_the_leaderboard_takes_for_it() -> None:
    register_resolvers()
    register_choices()
    suite = load_suite("v1")
    composer = Composer(arguments(["tracker=none"]), suite)
    for task in suite.tasks:
        base = composer.base(task, "rope")
        assert base is not None
        config, contents = plain(base.plan.resolved), base.plan.task.contents()
        for split in suite.tasks[task].generalises:
            at = composer.base(task, "rope", *trained_at(base, split))
            assert at is not None, split
            keys = {**config["task"], **config["task"]["splits"][split], "splits": {}}
            expected = task_digest({**config, "task": keys}, contents)
            assert task_digest(plain(at.plan.resolved), contents) == expected, (task, split)
