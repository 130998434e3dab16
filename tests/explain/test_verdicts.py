"""Verdicts in the report and the leaderboard: from run folders, and from the file that ships."""

from dataclasses import replace

import polars as pl
import pytest
from program import assert_has, assert_refused, csv_rows, ran, succeeded
from suites import COMMON, MODEL, TASK, tiny_suite
from test_verdict import diagnosis

from pe_lab.explain.record import METHOD, NAME, keep, read_diagnoses
from pe_lab.report.leaderboard import leaderboard_grid
from pe_lab.results import verdicts
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.rows import suite_runs
from pe_lab.results.leaderboard.scores import scores
from pe_lab.results.suite import load_suite
from pe_lab.results.table import read_runs
from pe_lab.store.run_folder import RunFolder

SUITE = ["suite=tiny", "--config-dir", "mine"]
FAR = {"far keys masked": 0.9, "fewer keys": 0.4, "oracle": 0.8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two seeds of a suite's score and one of its tuning, each with a diagnosis."""
    keys = [*COMMON, *TASK, *MODEL, "pe=alibi", "eval.every=3", "tracker.wandb.mode=disabled"]
    lines = [[*keys, f"seed={seed}", "train.lr=0.003"] for seed in (0, 1, 1000)]
    made = ran(tmp_path_factory, *lines)
    tiny_suite(made)
    for path in made.glob("runs/*/*/seed*"):
        one = RunFolder(path)
        for share in (0.9, 0.7):  # The last one counts.
            restored = {**FAR, "far keys masked": share}
            found = diagnosis(plain=0.4, restored=restored)
            keep(one, replace(found, run=one.identity, split="long_x2", method=METHOD))
    return made


@pytest.fixture
def run_cli(here, folder, monkeypatch):
    monkeypatch.chdir(folder)
    return here


@pytest.fixture
def shipped(run_cli, tmp_path, monkeypatch):
    """A file of the two seeds, and no record in their folders."""
    path = tmp_path / "tiny.why.parquet"
    outcome = succeeded(run_cli("why", "run=alibi", "split=long_x2", f"to={path}", *SUITE))
    assert_has(outcome.out, "2 runs, 1 left out, SHA-256")
    monkeypatch.setattr(verdicts, "shipped_file", lambda name: path)
    monkeypatch.setattr(verdicts, "read_diagnoses", lambda folder: [])
    return path


def test_the_file_has_what_verdicts_are_made_of(folder, shipped):
    rows, _ = verdicts.read(shipped, load_suite("tiny", folder / "mine"))
    assert set(rows["seed"]) == {0, 1}
    assert rows["lr"].unique().to_list() == [0.003]
    in_folders = [
        read_diagnoses(RunFolder(path))[0] for path in sorted(folder.glob("runs/*/*/seed[01]-*"))
    ]
    of_file = [one.diagnosis for one in verdicts.diagnosed(rows)]
    assert of_file == [replace(one, heads=[]) for one in in_folders]
    again = shipped.with_name("again.parquet")
    verdicts.write(rows, again)
    assert again.read_bytes() == shipped.read_bytes()


@pytest.mark.parametrize("where", ["folders", "file"])
def test_the_leaderboard_shows_them_beside_the_cell(run_cli, where, request):
    if where == "file":
        request.getfixturevalue("shipped")
    plain = succeeded(run_cli("leaderboard", *SUITE)).out
    assert "far competitors" not in plain
    out = succeeded(run_cli("leaderboard", "task=flipflop", *SUITE)).out
    (line,) = (line for line in out.splitlines() if "far competitors" in line)
    assert line.split() == [
        "flipflop",
        "alibi",
        "long_x2",
        "far",
        "competitors",
        "2/2",
        "70.0",
        "80.0",
    ]
    assert_has(out, "docs/why.md")
    assert (
        "far comp" not in succeeded(run_cli("leaderboard", "split=sparse", "pe=alibi", *SUITE)).out
    )
    rows = csv_rows(succeeded(run_cli("leaderboard", "format=csv", *SUITE)).out)
    assert {(r["entry"], r["split"]): r["verdict"] for r in rows if r["verdict"]} == {
        ("alibi", "long_x2"): "far competitors"
    }


def test_the_page_of_the_leaderboard_has_the_sentence(folder, run_cli, tmp_path):
    suite = load_suite("tiny", folder / "mine")
    here = suite_runs(folder / "runs", suite)
    found = scores(suite, pl.DataFrame(schema=here.rows.schema), here.rows)
    why = verdicts.of_scores(
        found, ["flipflop"], pl.DataFrame(schema=verdicts.SCHEMA), here.folders
    )
    titles = [
        c.title for row in leaderboard_grid(found, ["flipflop"], why=why).rows for c in row.cells
    ]
    assert any(title.startswith("alibi fails on flipflop at long_x2 because") for title in titles)
    page = tmp_path / "page.html"
    succeeded(run_cli("leaderboard", f"to={page}", *SUITE))
    assert_has(page.read_text(), "far competitors", "docs/why.md")


def test_a_run_that_does_not_count_has_no_say(run_cli, shipped):
    """As one at another rate than the tuned one."""
    rows, _ = file.read_frame(shipped, "")
    verdicts.write(rows.with_columns(run_id=pl.col("run_id") + "0"), shipped)
    assert "far comp" not in succeeded(run_cli("leaderboard", "task=flipflop", *SUITE)).out


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"method": METHOD + 1}, f"method {METHOD + 1}, which is now {METHOD}"),
        ({"suite": "tiny-0"}, "suite tiny-0, which is now tiny-"),
    ],
)
def test_a_stale_file_is_refused(run_cli, shipped, changed, part, caplog):
    rows, _ = file.read_frame(shipped, "")
    verdicts.write(
        rows.with_columns(pl.lit(v, verdicts.SCHEMA[k]).alias(k) for k, v in changed.items()),
        shipped,
    )
    outcome = succeeded(run_cli("leaderboard", "task=flipflop", *SUITE))
    assert "far competitors" not in outcome.out
    assert_has(caplog.text, "2 runs", part, "write it again with pe-lab why")


def test_a_damaged_file_is_refused(run_cli, shipped):
    shipped.write_bytes(shipped.read_bytes()[:-1])
    assert_refused(run_cli("leaderboard", "task=flipflop", *SUITE), "digest", status=1)


def test_the_report_has_a_column(folder, run_cli, tmp_path):
    succeeded(run_cli("report", "seed=0,1", f"to={tmp_path}", "inspect=none"))
    page = (tmp_path / "index.html").read_text()
    assert_has(page, "far competitors<small>long_x2 2/2</small>", "defined in docs/why.md")
    assert_has(page, "alibi fails on flipflop at long_x2")


def test_a_damaged_record_is_named_and_the_other_seeds_have_a_verdict(folder, run_cli):
    path = next(folder.glob(f"runs/*/*/seed0-*/{NAME}"))
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b"plain", b"plaim", 1))
    found, (message,) = verdicts.recorded(read_runs(folder / "runs", seed="0,1"))
    path.write_bytes(kept)
    ((cell,),) = found.values()
    assert [one.seed for one in cell.seeds] == [1]
    assert_has(message, NAME, "until then it has no verdict")
