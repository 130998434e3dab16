"""Verdicts in the report and the leaderboard: from run folders, and from the file that ships."""

from dataclasses import replace

import pytest
from program import assert_has, csv_rows, ran, succeeded
from suites import COMMON, MODEL, TASK, tiny_suite
from test_verdict import diagnosis

from pe_lab.explain.record import METHOD, NAME, read_diagnoses, record_diagnosis
from pe_lab.report.page import recorded
from pe_lab.results.table import read_runs
from pe_lab.store.run_folder import RunFolder
from pe_lab.suite import verdicts
from pe_lab.suite.suite import load_suite

SUITE = ["suite=tiny", "--config-dir", "mine"]
FAR = {"far keys masked": 0.9, "fewer keys": 0.1, "oracle": 0.8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two scored seeds of a suite and its tuning runs, each with a diagnosis."""
    keys = [*COMMON, *TASK, *MODEL, "pe=alibi", "eval.every=3", "tracker.wandb.mode=disabled"]
    rates = ["train.lr=0.001,0.003,0.006,0.012", "seed=1000"]
    made = ran(
        tmp_path_factory,
        ["-m", *keys, *rates],
        *(
            [*keys, f"train.lr={rate}", f"seed={seed}"]
            for rate in (0.003, 0.012)
            for seed in (0, 1)
        ),
    )
    tiny_suite(made)
    for path in made.glob("runs/*/*/seed*"):
        one = RunFolder(path)
        for share in (0.9, 0.7):  # The last one counts.
            restored = {**FAR, "far keys masked": share}
            found = diagnosis(plain=0.4, restored=restored)
            record_diagnosis(one, replace(found, run=one.identity, split="long_x2", method=METHOD))
    return made


@pytest.fixture
def run_cli(here, folder, monkeypatch):
    monkeypatch.chdir(folder)
    return here


@pytest.mark.parametrize("where", ["folders", "file"])
def test_the_leaderboard_shows_them_beside_the_cell(run_cli, where, tmp_path, monkeypatch, folder):
    if where == "file":
        file = tmp_path / "tiny.why.parquet"
        said = succeeded(run_cli("why", "run=alibi", "split=long_x2", f"to={file}", *SUITE)).out
        assert "4 left out" in said, "the tuning runs"
        shipped = {"tiny.why.parquet": file}
        monkeypatch.setattr(
            "pe_lab.suite.rows.shipped_file", lambda name: shipped.get(name, tmp_path / name)
        )
        monkeypatch.setattr(verdicts, "read_diagnoses", lambda folder: [])
        of_file = verdicts.shipped_diagnoses(load_suite("tiny", folder / "mine"))
        by_run = {str(one.path): one.diagnosis for one in of_file}
        for path in folder.glob("runs/*/*/seed[01]-*"):
            (one,) = read_diagnoses(RunFolder(path))
            assert by_run["-".join(path.parts[-3:])] == replace(one, heads=[])
    rows = csv_rows(succeeded(run_cli("leaderboard", "format=csv", *SUITE)).out)
    assert {(r["entry"], r["split"]): r["verdict"] for r in rows if r["verdict"]} == {
        ("alibi", "long_x2"): "far competitors"
    }
    page = tmp_path / "page.html"
    succeeded(run_cli("leaderboard", f"to={page}", *SUITE))
    assert_has(page.read_text(), "far competitors")
    if where == "folders":
        succeeded(run_cli("report", "inspect=none", f"to={tmp_path}"))
        assert_has((tmp_path / "index.html").read_text(), "long_x2: far competitors")


def test_a_damaged_record_is_named_and_the_other_seeds_have_a_verdict(folder, run_cli):
    path = next(folder.glob(f"runs/*/*/seed0-*/{NAME}"))
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b"plain", b"plaim", 1))
    found, (message,) = recorded(read_runs(folder / "runs", seed="0,1"))
    path.write_bytes(kept)
    assert sorted(one.seed for cell in found.values() for one in cell.seeds) == [0, 1, 1]
    assert_has(message, NAME, "until then it has no verdict")
