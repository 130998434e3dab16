"""``pe-lab results``: the numbers in the tables, the marks, the formats and the words."""

import io
import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, settings
from made import errors_of, made, unfinished
from program import Here, assert_has, assert_refused, csv_rows, succeeded, tiny
from rich.console import Console

from pe_lab.core.console import percent
from pe_lab.core.metrics import METRICS, Metric, wilson
from pe_lab.experiment.run import split_table
from pe_lab.results.groups import grouped
from pe_lab.results.table import read_runs
from pe_lab.store.files import sealed
from pe_lab.store.run_folder import RunFolder

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def table(here: Here, title: str, *words: str) -> dict[str, dict[str, str]]:
    """The rows of the table with this title, by their first cells."""
    out = here("results", "format=markdown", *words).out.replace("\\", "")
    lines = out[out.index(title) :].split("\n\n")[1].splitlines()
    header, _, *body = ([cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines)
    return {row[0]: dict(zip(header, row, strict=True)) for row in body}


def test_every_setting_differs_from_the_others(here: Here) -> None:
    row = "w1i0r1w0i1i0r0i1"
    Path("rows.txt").write_text(f"{row}r0\n" * 40)
    changes = [
        [],
        ["train.lr=0.01"],
        ["task.splits.sparse.p_ignore=0.5"],
        ["task.files={sparse: rows.txt}"],
    ]
    for words in changes:
        assert here(*tiny(*words)).status == 0
    Path("rows.txt").write_text(f"{row}i0r0\n" * 40)
    assert here(*tiny(*changes[-1])).status == 0
    rows = csv_rows(here("results", "format=csv", "splits=sparse").out)
    assert len({row["differs"] for row in rows}) == len(rows) == 5
    assert {row["seeds"] for row in rows} == {"0"}
    assert any("splits.sparse.p_ignore=0.5" in row["differs"] for row in rows)
    assert "setting" in here("results").out


def test_a_killed_run_is_no_running_one(here: Here) -> None:
    folder = RunFolder(Path("runs/flipflop/rope/seed0-01234567"))
    folder.make()
    folder.set_status("running", 3, 9)
    with folder.lock():
        assert f"{folder.path}  running at step 3 of 9" in here("results").out
    assert f"{folder.path}  killed at step 3 of 9" in here("results").out


def test_splits_metric_sort_and_spread(here: Here) -> None:
    for pe, value in (("a", 0.2), ("b", 0.1), ("c", 0.3)):
        made(pe, errors={"in_domain": 0.05, "sparse": value, "dense": None if pe == "a" else value})
    assert table(here, "flipflop")["a"]["dense"] == "n/a"
    # By the mean over dense and sparse; a could not measure both.
    assert [row["OOD mean"] for row in table(here, "flipflop").values()][:3] == [
        "10.0", "30.0", "n/a"
    ]  # fmt: skip
    for words, order in {
        "": "bca", "sort=-ood": "cba", "sort=sparse": "bac", "sort=-sparse": "cab",
        "sort=dense": "bca", "sort=-dense": "cba", "sort=-pe": "cba",
    }.items():  # fmt: skip
        assert list(table(here, "flipflop", *words.split())) == [*order, "(guessing)"]
    some = table(here, "flip", "splits=dense,in_domain")["b"]
    assert list(some) == ["encoding", "n", "dense", "in_domain"]
    assert table(here, "flipflop: loss", "metric=loss")["a"]["sparse"] == "0.500"
    wide = table(here, "flipflop: error_seq in %", "metric=error_seq")
    assert wide["a"]["sparse"] == "40.0"
    assert "(guessing)" not in wide
    made("a", 1, errors={"in_domain": 0.05, "sparse": 0.4, "dense": None})
    assert table(here, "flip", "spread=sd")["a"]["sparse"] == "30.0 ± 14.1"


def test_the_highest_rates_come_first_then_the_lowest_means(here: Here) -> None:
    """The rate is the mean over the splits out of domain, in domain apart, the mean breaks a tie;
    one seed has a rate, too, and last is what lacks one of its splits."""
    # Of sparse and dense: 2/2 and 1/2, 1/2 and 2/2, 0/2 twice, 1/2 twice.
    runs = {
        "late": ([0.0, 0.0], [0.0, 1.0]),
        "early": ([0.0, 0.4], [0.0, 0.0]),
        "low": ([0.03, 0.03], [0.03, 0.03]),
        "half": ([0.0, 0.04], [0.04, 0.0]),
        "one": ([0.0], [0.04]),
        "short": ([0.0, 0.0], [None, None]),
    }
    for pe, (sparse, dense) in runs.items():
        for seed, pair in enumerate(zip(sparse, dense, strict=True)):
            inside = 0.0 if pe == "low" else 0.5
            errors = {"in_domain": inside, "sparse": pair[0], "dense": pair[1]}
            made(pe, seed, errors=errors)
    by_rate = ["early", "late", "half", "one", "low", "short"]
    found = table(here, "flipflop")
    assert list(found)[:6] == by_rate
    assert list(found["low"]) == ["encoding", "n", "in_domain", "sparse", "dense", "OOD mean"]
    assert list(table(here, "flipflop", "splits=ood,sparse,dense")["low"])[2] == "OOD mean"
    # Of sparse alone; tied means in the order of their names.
    assert list(table(here, "flip", "splits=sparse"))[:6] == [
        "late", "one", "short", "half", "early", "low",
    ]  # fmt: skip
    by_mean = ["half", "one", "low", "early", "late", "short"]
    for words in (["sort=ood"], ["spread=sd"], ["metric=error_seq"]):
        assert list(table(here, "flip", *words))[:6] == by_mean
    assert list(table(here, "flip", "where=seed=0"))[:2] == ["early", "late"]


def test_rates_come_first(here: Here) -> None:
    """Thresholds of flipflop in suite v1: 1 % in domain, 2 % of the splits."""
    for seed, error in enumerate([0.0, 0.01, 0.03, 0.04]):
        made("a", seed, errors={"in_domain": error, "sparse": error})
    for seed, error in enumerate([0.0, 0.36, 0.0]):
        made("b", seed, errors={"in_domain": 0.0, "sparse": error})
    made("c", 0, errors={"in_domain": 0.5, "sparse": 0.5})
    found = table(here, "flipflop")
    assert (found["a"]["in_domain"], found["a"]["sparse"]) == ("2/4 2.00 (2.00 ± 1.83)",) * 2
    assert (found["b"]["in_domain"], found["b"]["sparse"]) == ("3/3 0.0", "2/3‡ 0.0 (12.0 ± 20.8)")
    assert found["b"]["OOD mean"] == "12.0 ± 20.8‡"
    assert found["c"]["sparse"] == "50.0"
    assert table(here, "flip", "threshold=0.4")["b"]["sparse"] == "3/3‡ 0.0 (12.0 ± 20.8)"
    assert table(here, "flip", "spread=sd")["b"]["sparse"] == "12.0 ± 20.8‡"
    caption = " ".join(here("results").out.split())
    assert "k/n: seeds with an error up to the threshold; median; mean ± sd over seeds." in caption
    assert [found["(threshold)"][name] for name in ("OOD mean", "in_domain", "sparse")] == [
        "", "1.00", "2.00"
    ]  # fmt: skip
    assert "‡: seeds in two clusters" in caption
    assert "‡" not in here("results", "pe=a").out
    assert "(threshold)" not in here("results", "pe=c").out + here("results", "spread=sd").out


def test_rates_in_numbers(here: Here) -> None:
    for seed, error in enumerate([0.0, 0.3, 0.0]):
        made("b", seed, errors={"in_domain": 0.0, "sparse": error})
    row = json.loads(here("results", "format=json", "splits=sparse").out)["rows"][0]
    names = ("k", "n", "median", "clusters", "threshold", "values", "best")
    assert [row[name] for name in names] == [
        2, 3, 0.0, True, 0.02, [0.0, 0.0, 0.3], False
    ]  # fmt: skip
    assert (row["p_generalises"], row["p_low"], row["p_high"]) == (2 / 3, *wilson(2, 3))
    loss = json.loads(here("results", "format=json", "metric=loss", "splits=sparse").out)["rows"]
    assert [loss[0][name] for name in ("k", "p_generalises", "threshold")] == [None] * 3
    mean = json.loads(here("results", "format=json").out)["rows"][-1]
    assert (mean["split"], mean["k"], mean["clusters"]) == ("ood", None, True)


def test_a_loss_that_is_not_finite_is_not_left_out(here: Here) -> None:
    made("a", 0, loss=0.5)
    made("a", 1, loss=None)
    row = grouped(read_runs(), metric="loss", splits=["sparse"]).row(0, named=True)
    assert (row["n"], row["not_finite"], row["mean"], row["best"]) == (1, 1, None, False)
    assert table(here, "flip", "metric=loss")["a"]["sparse"] == "not finite"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("by=pee", "by=pee: none of the runs has a key pee: did you mean pe?"),
        ("by=", "by=: an entry is empty"),
        ("by=in_domain/error", "in_domain/error is measured"),
        ("splits=sparze", "splits=sparze: did you mean sparse?"),
        ("metric=eror", "metric=eror: did you mean error?"),
        ("sort=sparce", "sort=sparce: did you mean sparse?"),
        ("format=cvs", "format=cvs is not allowed: did you mean csv?"),
        ("threshold=5", "threshold=5 is not allowed: set it to a share from 0 to 1"),
        ("threshold=0.1 metric=loss", "metric=loss is none of them: leave threshold out"),
        ("threshold=0.1 evaluations=true", "evaluations=true: its tables have no rates"),
        ("spread=ds", "spread=ds is not allowed: did you mean sd"),
        ("were=pe", "did you mean where"),
        ("pee=rope", "pee=rope: did you mean pe?"),
        ("where=pe=", "character 4"),
        ("runs_dir=nowhere", "runs_dir=nowhere is not a folder"),
        ("--config-dir nowhere", "--config-dir nowhere is not a folder"),
    ],
)
def test_a_wrong_word_is_one_sentence(here: Here, word: str, message: str) -> None:
    made()
    assert_refused(here("results", *word.split()), message)


def test_what_only_an_unfinished_run_has_is_not_named(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    errors_of("a", [0.1, 0.2], **{"model.d_model": 32, "train.stop_below": 0.1})
    unfinished("failed", "a", 9, **{"train.steps": 9})
    rows = json.loads(here("results", "format=json", "splits=sparse").out)["rows"]
    assert {row["differs"] for row in rows} == {
        "",
        "d_model=32 stop_below=0.1",
    }


def test_a_row_of_many_runs(here: Here, tmp_path: Path) -> None:
    made("a", errors={"in_domain": 0.0, "sparse": 0.0})
    runs = read_runs()
    many = pl.concat(
        runs.with_columns(seed=pl.lit(n, pl.Int64), path=pl.lit(f"runs/{n}")) for n in range(1100)
    )
    many.write_parquet("many.parquet")
    done = succeeded(here("results", "file=many.parquet", "by=pe"))
    assert "1100/1100 0.0" in done.out


@pytest.mark.parametrize("form", ["csv", "markdown", "latex"])
def test_no_format_writes_control_characters(here: Here, form: str) -> None:
    made("a", **{"tracker.wandb.tags": "x", "task.word": "\x1b[31mred\x9b"})
    made("a", **{"task.word": "plain"})
    done = succeeded(here("results", f"format={form}", "by=task.word"))
    assert not {"\x1b", "\x9b"} & {*done.out, *done.err}
    assert "x1b" in done.out


def test_a_bound_of_no_error_is_0() -> None:
    for n in range(1, 3000):
        assert wilson(0, n)[0] == 0
        assert wilson(n, n)[1] == 1
    assert percent(5.4e-20) == "0.0"


def test_not_measured_is_not_infinite(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run from before there was a metric lacks it; one whose loss overflowed has null."""
    mine = Metric("mine", float, "nats", column="mine", lower_is_better=True, may_overflow=True)
    for module in ("core.metrics", "experiment.run"):
        monkeypatch.setattr(f"pe_lab.{module}.METRICS", (*METRICS, mine))
    made("old")
    for seed, value in enumerate((0.5, None)):
        run = made("new", seed, **{"task.length": 64 + seed})
        summary = json.loads((run.path / "summary.json").read_text())
        summary["metrics"] |= {"in_domain/mine": 0.5, "ood/sparse/mine": value}
        del summary["digest"]
        run.write("summary.json", sealed(summary))
        shown = Console(file=io.StringIO(), width=200)
        shown.print(split_table({**summary, "too_long": {}}))
        assert ("not finite" in shown.file.getvalue()) == (value is None)
    found = table(here, "flipflop", "metric=mine", "by=pe,task.length")
    shown_by = grouped(read_runs(), ["pe", "task.length"], "mine", ["sparse"])
    counts = shown_by.select("pe", "n", "not_finite").sort("pe", "n").rows()
    assert counts == [("new", 0, 1), ("new", 1, 0), ("old", 0, 0)]
    assert found["old"]["sparse"] == "n/a"


def test_runs_are_written_to_a_file_and_read_from_it(here: Here) -> None:
    made("a")
    made("b")
    assert here("results", "pe=a", "to=a.parquet").out == "a.parquet: 1 run\n"
    shown = here("results", "file=a.parquet").out
    assert "a  " in shown
    assert "b  " not in shown
    done = here("results", "to=a.parquet")
    assert (done.status, "a.parquet exists and is left as it is" in done.err) == (2, True)
    for word, hint in {
        "to=x.csv": "format=csv > x.csv",
        "to=x.md": "format=markdown > x.md",
        "to=x": "give FILE.parquet",
        "format=parquet": "give to=FILE.parquet",
        "metric=accuracy": "did you mean error?",
        "by=encoding": "did you mean pe?",
        "encoding=cope": "did you mean pe?",
    }.items():
        assert_refused(here("results", word), hint)
    assert not Path("x.csv").exists()


def test_the_runs_of_the_findings_ship(here: Here) -> None:
    out = here("results", "file=findings", "task=needle", "pe=rope").out
    assert_has(out, "needle: error in %", "rope")
    for task, hint in {
        "indirect": "pe-lab results file=findings task=indirect shows the runs that ship",
        "group_word": "it has that task with other keys, task=parity",
        "reverse": "no runs of it ship; pe-lab -m task=reverse",
    }.items():
        assert_refused(here("leaderboard", f"task={task}"), "is not in suite v2", hint)
