"""``pe-lab suite``: tuning, score and the other phases of a small suite, trained and continued."""

import re
import signal
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from program import Here, assert_refused, csv_rows, start, succeeded, summary
from suites import TASK, folders, tiny_suite, written

from pe_lab.core.config_dir import choices
from pe_lab.suite import rows as rows_module
from pe_lab.suite.rows import SCHEMA, read_own
from pe_lab.suite.runs import Known, Stage, select_stages
from pe_lab.suite.suite import load_suite

SEARCH = {"start": [0.003, 0.006], "near_error": 0.02, "near_loss": 5, "runs": 5}


def own_rows(folder: Path) -> pl.DataFrame:
    suite = load_suite("tiny", folder / "mine")
    return read_own(suite, folder / "runs", folder / "mine").filter(split="in_domain")


def test_tuning_chooses_the_rate_of_the_score(here: Here, tmp_path: Path) -> None:
    line = [*tiny_suite(tmp_path), "pe=none,lstm"]
    dry = succeeded(here(*line, "dry=true")).out
    assert not (tmp_path / "runs").exists()
    assert re.search(r"all +12 +12", dry), "four rates and two seeds of two entries"
    assert "flipflop, tuning: 8 finished" in succeeded(here(*line)).out
    rows = own_rows(tmp_path)
    assert {*rows.filter(phase="score").select("entry", "seed").iter_rows()} == {
        (entry, seed) for entry in ("none", "lstm") for seed in (0, 1)
    }
    for entry in ("none", "lstm"):
        tuning = rows.filter(phase="tuning", entry=entry)
        best = tuning.sort("error", "loss", "lr").row(0, named=True)["lr"]
        assert {*rows.filter(phase="score", entry=entry)["lr"]} == {best}
    before = {path: path.stat().st_mtime for path in tmp_path.glob("runs/*/*/*/summary.json")}
    assert len(before) == 12
    assert "nothing is missing" in succeeded(here(*line)).out
    assert before == {path: path.stat().st_mtime for path in before}
    table = csv_rows(succeeded(here("leaderboard", "suite=tiny", *line[2:4], "format=csv")).out)
    assert {(row["entry"], row["n"], row["yours"]) for row in table} == {
        ("none", "2", "2"), ("lstm", "2", "2"),
    }  # fmt: skip
    shown = succeeded(here("leaderboard", "suite=tiny", *line[2:4])).out
    assert "none (yours), run on 1 task, generalises on none of them." in shown


@pytest.mark.extended
def test_a_search_and_columns_through_several_processes(here: Here, tmp_path: Path) -> None:
    more = {"columns": {"alone": {}, "conv": {"words": ["model.conv=3"]}}}
    line = tiny_suite(tmp_path, more=more)
    path = tmp_path / "mine" / "suite" / "tiny.yaml"
    path.write_text(path.read_text().replace("protocol:", f"protocol:\n  search: {SEARCH}"))
    (tmp_path / "mine" / "pe").mkdir()
    (tmp_path / "mine" / "pe" / "mine.yaml").write_text(choices("pe")["alibi"].read_text())
    pool = [word for word in line if "launcher" not in word]
    phases = "phases=tuning,score,more_seeds,longer"
    succeeded(here(*pool, "pe=mine", phases, "hydra.launcher.n_jobs=2"))
    rows = own_rows(tmp_path)
    assert {*rows["entry"]} == {"mine", "mine+conv"}
    counts = rows.group_by("entry", "phase").len().sort("entry", "phase").rows()
    assert [c for c in counts if c[1] != "tuning"] == [
        ("mine", "score", 3), ("mine", "steps_x2", 2),
        ("mine+conv", "score", 3), ("mine+conv", "steps_x2", 2),
    ]  # fmt: skip
    assert "nothing is missing" in succeeded(here(*pool, "pe=mine", phases)).out


def test_a_failed_run_does_not_stop_the_suite_and_is_tried_again(
    here: Here, tmp_path: Path
) -> None:
    line = [*tiny_suite(tmp_path, [0.001, 1e30], common=["train.clip=null"]), "pe=alibi"]
    for _ in range(2):
        ended = here(*line)
        assert_refused(ended, "1 run", status=1)
        assert "flipflop alibi tuning lr 1e+30 seed 1000: failed: " in " ".join(ended.out.split())
    rows = own_rows(tmp_path)
    assert rows.filter(phase="tuning").sort("lr")["state"].to_list() == ["finished", "failed"]
    assert {*rows.filter(phase="score")["lr"]} == {0.001}
    assert {*rows["entry"]} == {"alibi"}


def test_a_score_without_tuning_is_refused(here: Here, tmp_path: Path) -> None:
    ended = here(*tiny_suite(tmp_path), "pe=none", "phases=score")
    assert_refused(ended, "none on flipflop has no tuned rate: give phases=tuning,score")


def test_another_task_is_refused(here: Here, tmp_path: Path) -> None:
    ended = here(*tiny_suite(tmp_path, digest="00000000"), "pe=none")
    assert_refused(ended, "the task flipflop composes to ")
    assert not folders(tmp_path)


@pytest.mark.extended
def test_it_goes_on_after_a_signal(here: Here, tmp_path: Path) -> None:
    words = [word if "steps" not in word else "train.steps=60" for word in TASK]
    line = [*tiny_suite(tmp_path, words=words), "pe=none"]
    pool = ["hydra/launcher=joblib" if "launcher" in word else word for word in line]
    process = start(*pool, "hydra.launcher.n_jobs=2", cwd=tmp_path)
    process.wait_for(lambda: written(tmp_path))
    process.send(signal.SIGTERM)
    assert process.status == 128 + signal.SIGTERM
    assert "run the same command to continue" in (tmp_path / "stdout").read_text()
    succeeded(here(*line))
    assert len(folders(tmp_path)) == 6
    assert {summary(path)["steps"] for path in folders(tmp_path).values()} == {60}


@pytest.mark.extended
def test_shipped_runs_are_not_trained(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [*tiny_suite(tmp_path), "pe=none"]
    succeeded(here(*line))
    file = tmp_path / "tiny.parquet"
    found = SimpleNamespace(shipped={"tiny.parquet": file})
    succeeded(here("leaderboard", "suite=tiny", *line[2:4], f"to={file}"))
    elsewhere = tmp_path / "none.parquet"
    monkeypatch.setattr(
        rows_module, "shipped_file", lambda name: found.shipped.get(name, elsewhere)
    )
    assert pl.read_parquet(file).columns == [*SCHEMA]
    (tmp_path / "runs").rename(tmp_path / "before")
    assert "nothing is missing" in succeeded(here(*line)).out
    succeeded(here(*line, "shipped=false"))
    assert len(folders(tmp_path)) == 6


def test_costs_are_of_the_entry_else_relative_to_rope() -> None:
    known = Known(load_suite("v2"), pl.DataFrame(schema=SCHEMA))
    rope, path = (known.seconds("flipflop", entry) for entry in ("rope", "path"))
    assert 3 < rope < 30
    assert 1.2 < path / rope < 4
    pilot = known.seconds("needle", "rope")
    assert pilot == pytest.approx(50.0)
    assert known.seconds("needle", "mine") == pilot, "nobody knows what it costs"
    assert known.seconds("needle", "rope+conv") == pytest.approx(1.35 * pilot)


def test_the_cost_of_an_entry_of_ones_own_is_timed(here: Here, tmp_path: Path) -> None:
    line = tiny_suite(tmp_path, seconds=3600.0)
    (tmp_path / "mine" / "pe").mkdir()
    (tmp_path / "mine/pe/slow.yaml").write_text("_target_: slow.Slow\n")
    (tmp_path / "mine/slow.py").write_text("""
import time
from pe_lab.pe.base import PositionalEncoding
class Slow(PositionalEncoding):
    def bias(self, *positions):
        time.sleep(0.2)
        return None
""")
    shown = [succeeded(here(*line, "dry=true", f"pe={pe}")).out for pe in ("none", "slow")]
    none, slow = (float(text.split()[-1]) for text in shown)
    assert none == pytest.approx(6.0), "as rope"
    assert slow > 3 * none


def test_an_encoding_of_ones_own_is_trained_alone_and_with_the_convolution() -> None:
    suite = load_suite("v2_1")
    stages = select_stages(suite, entries=["mine"])
    assert {(entry, stage.task) for stage in stages for entry in stage.entries} == {
        (entry, task) for entry in ("mine", "mine+conv") for task in suite.tasks if task != "text"
    }


def test_the_rates_of_v2_are_those_of_its_score() -> None:
    """The suite goes on at the rates that the leaderboard counts."""
    suite = load_suite("v2")
    known = Known(suite, pl.DataFrame(schema=SCHEMA))
    assert not known.next_runs(Stage(0, "1", "recall", "tuning", ["cope", "cope+conv"]))
    assert not known.next_runs(Stage(0, "1", "recall", "score", ["cope", "cope+conv"]))


def test_a_column_with_the_rate_of_another_is_not_tuned(here: Here, tmp_path: Path) -> None:
    out = succeeded(here("suite", "v2_1", "dry=true", "columns=conv_k", "pe=alibi")).out
    assert re.search(r"copy_unique +score +8 +0 ", out), "eight of its seeds ship"
    assert "tuning" not in out


def test_entries_are_named_by_how_they_depart(here: Here, tmp_path: Path) -> None:
    tiny_suite(tmp_path)
    suite = load_suite("tiny", tmp_path / "mine")
    words = [*suite.run_words("flipflop", "alibi"), "train.lr=0.003", "eval.every=3"]
    assert here(*words, "tracker=none").status == 0
    assert here(*words, "tracker=none", "model.d_ff=8", "positions=randomized").status == 0
    names = sorted(own_rows(tmp_path)["entry"])
    assert names == ["alibi", "alibi positions=randomized model.d_ff=8"]
