"""wandb gets the numbers of ``pe-lab why``, offline, into the run that was tracked."""

import json
from dataclasses import replace

import pytest
from offline_wandb import files, history, start, whole
from program import Here, assert_has, succeeded, the_run, tiny
from test_verdict import diagnosis

from pe_lab.experiment.trackers.wandb import WandbTracker
from pe_lab.explain.record import METHOD, keep
from pe_lab.store.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("no_wandb_account")


def test_the_run_has_them_beside_its_errors(here: Here, tmp_path, monkeypatch) -> None:
    succeeded(here(*tiny("pe=alibi", "tracker.wandb.mode=offline")))
    folder = the_run(tmp_path / "runs")
    rows, run = history(folder), RunFolder(folder)
    for split, share in (("long_x2", 0.9), ("long_x4", 0.7)):
        found = diagnosis(restored={"far keys masked": share})
        keep(run, replace(found, run=run.identity, split=split, method=METHOD))

    def fail(*_):
        raise OSError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(WandbTracker, "_init", fail)
        out = succeeded(here("why", "run=alibi", "split=long_x2")).out
    assert_has(out, "did not start: no network; the run folder has every number; the same command")
    assert_has(out, "alibi fails on flipflop at long_x2")
    # Tables and pictures are there already.
    monkeypatch.setattr("pe_lab.experiment.trackers.wandb.split_rows", None)
    for split in ("long_x2", "long_x4", "long_x4"):
        assert "wandb" not in succeeded(here("why", "run=alibi", f"split={split}")).out
    first, *_, last = files(folder)
    # The call that failed is made up for, and what wandb has is not sent again.
    assert len(files(folder)) == 3
    assert start(last)["run_id"] == start(first)["run_id"]
    assert history(folder) == rows
    summary = whole(last)["summary"]
    errors = json.loads((folder / "summary.json").read_text())["metrics"]
    assert summary["ood/long_x2/error"] == errors["ood/long_x2/error"]
    assert summary["why/long_x2/verdict"] == summary["why/long_x4/verdict"] == "far competitors"
    assert (summary["why/long_x2/far_keys_masked"], summary["why/long_x4/oracle"]) == (0.9, 1.0)
