"""The table of all runs: its columns and states, and the file that it is kept in."""

import shutil
from pathlib import Path

import pytest
from made import edit_summary, errors_of, made, unfinished
from program import Here, assert_refused

from pe_lab.results.table import breakdowns, by_split, curves, read_file_of_runs, read_runs
from pe_lab.store.run_id import identity


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_key_and_metric_is_a_column() -> None:
    run = made("rope", 3, **{"pe.base": 500, "pe.npos": None, "train.steps": 7})
    (row,) = read_runs().iter_rows(named=True)
    summary = run.summary()
    assert summary is not None
    expected = {
        "path": str(run.path), "state": "finished", "task": "flipflop", "pe": "rope", "seed": 3,
        "step": 7, "steps": 7, "train.steps": 7, "pe.base": 500, "pe.npos": None,
        "positions": "sequential", "preset": "flipflop", "in_domain/error": 0.25,
        "positions._target_": "pe_lab.pe.positions.Sequential", "params/total": 1000,
        "model.tied_embeddings": False, "train.betas": "[0.9, 0.999]",
        "task.splits.sparse.p_ignore": 0.98, "splits": ["in_domain", "sparse"],
        "setting": identity({**summary["config"], "seed": 0}),
    }  # fmt: skip
    assert {key: row[key] for key in expected} == expected


def test_a_key_may_hold_another_kind_in_every_run() -> None:
    kinds = [(1, "1"), (2.5, "2.5"), (True, "true"), ("auto", "auto"), (None, None)]
    for seed, (value, _) in enumerate(kinds):
        made("rope", seed, **{"pe.base": value})
    made("t5", **{"pe.max": 2})
    made("t5", 1, **{"pe.max": 2.5})
    runs = read_runs()
    assert runs.filter(pe="rope").sort("seed")["pe.base"].to_list() == [text for _, text in kinds]
    assert runs.filter(pe="t5")["pe.max"].to_list() == [2.0, 2.5]
    assert read_runs(seed="[0, 2]", **{"pe.base": "1"})["seed"].to_list() == [0]
    assert read_runs(**{"pe.base": [True, "auto"]})["seed"].to_list() == [2, 3]


def test_states() -> None:
    made("none")
    running = unfinished("running", "rope")
    unfinished("running", "cope")
    for state in ("interrupted", "failed", "finished"):
        unfinished(state, "t5", seed={"interrupted": 0, "failed": 1, "finished": 2}[state])
    Path("runs/flipflop/xpos/seed0-01234567").mkdir(parents=True)
    broken = made("fire").path / "summary.json"
    broken.write_text('{"task": 3}')
    made("fire", 1).set_aside()
    with running.lock():
        states = {(pe, seed): s for pe, seed, s in read_runs().select("pe", "seed", "state").rows()}
    assert states == {
        ("none", 0): "finished", ("rope", 0): "running", ("cope", 0): "killed",
        ("t5", 0): "interrupted", ("t5", 1): "failed", ("t5", 2): "killed",
        ("xpos", 0): "not begun", ("fire", 0): "broken",
    }  # fmt: skip
    # A broken run has no keys: no condition on them leaves it out.
    fire, t5 = read_runs(where="lr=77 or message='what went wrong'").sort("pe")["message"]
    assert (t5, str(broken) in fire) == ("what went wrong", True)
    assert [[*read_runs(pe=pe, **{"train.lr": 77})["message"]] for pe in ("fire", "t5")] == [
        [fire],
        [],
    ]


def test_splits_curves_and_breakdowns() -> None:
    run = made("rope", errors={"in_domain": 0.25, "sparse": None})
    (run.path / "metrics.jsonl").write_text(
        '{"step": 1, "train/loss": 2}\n{"step": 2, "a": 3.5}\n{"st'
    )
    unfinished("failed", "cope")
    found = by_split(read_runs()).select("split", "place", "error", "n").rows()
    assert found == [("in_domain", "in_domain", 0.25, 100), ("sparse", "ood/sparse", None, None)]
    drawn = curves(read_runs())
    assert drawn.select("step", "train/loss", "a").rows() == [(1, 2.0, None), (2, None, 3.5)]
    columns = ("split", "kind", "bucket", "error", "loss", "n")
    assert breakdowns(read_runs()).select(columns).rows() == [
        ("in_domain", "length", "1", 0.25, None, 4)
    ]
    edit_summary(run.path, lambda s: s["by"]["in_domain"]["length"]["1"].update(loss=0.5))
    assert breakdowns(read_runs())["loss"].to_list() == [0.5]


def test_a_copy_of_a_run_is_not_a_second_seed(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    shutil.copytree("runs/flipflop/a", "runs/flipflop/a.bak")
    Path("runs/flipflop/linked").symlink_to("a", target_is_directory=True)
    runs = read_runs()
    assert runs["state"].to_list() == ["finished"] * 2 + ["broken"] * 4
    again = r"^runs/flipflop/[a-z.]+/seed.-\w+ is runs/flipflop/a/seed.-\w+ again, "
    assert runs["message"].drop_nulls().str.contains(again).all()
    assert here("results").out.count("counted once") == 4


def test_a_file_of_runs_is_read_without_the_folders(here: Here) -> None:
    made("cope")
    for seed in range(3):
        made("rope", seed, errors={"in_domain": 0, "sparse": 0.1 * seed})
    shown = here("results", "pe=rope", "format=json")
    runs = read_runs(pe="rope")
    assert here("results", "pe=rope", "to=runs.parquet").out == "runs.parquet: 3 runs\n"
    assert_refused(here("results", "to=runs.parquet"), "give a new FILE.parquet")
    assert_refused(here("leaderboard", "to=runs.parquet"), "give a new FILE.html or FILE.parquet")
    shutil.rmtree("runs")
    assert read_file_of_runs("runs.parquet").equals(runs)
    again = here("results", "file=runs.parquet", "task=flipflop", "format=json")
    assert (again.out, again.status, '"n": 3' in again.out) == (shown.out, 0, True)
    compared = here("compare", "file=runs.parquet", "task=flipflop", "pe=rope")
    assert (compared.status, "Golovneva" in compared.out) == (0, True)


@pytest.mark.parametrize("command", ["results", "compare"])
def test_another_file_is_refused(here: Here, command: str) -> None:
    made("rope")
    Path("text").write_text("no table")
    read_runs().drop("state").write_parquet("other")
    for words in (["file=text"], ["file=none"], ["file=other"], ["file=text", "runs_dir=runs"]):
        assert_refused(here(command, *words), words[0])
