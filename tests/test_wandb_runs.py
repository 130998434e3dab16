"""What whole runs leave in wandb: several at once, and killed ones that go on.

``test_wandb_server.py`` has what reaches a server.
"""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from offline_wandb import core_of, files, history, start, whole
from program import Here, rows, the_run, tiny
from program import start as start_process

pytestmark = pytest.mark.usefixtures("no_wandb_account")

OFFLINE = "tracker.wandb.mode=offline"


def logged(row: dict[str, Any]) -> dict[str, Any]:
    """A row as metrics.jsonl has it, less the times."""
    return {k: v for k, v in row.items() if k != "ood/error" and not k.startswith("time/")}


def all_rows_once(folder: Path) -> None:
    """Every row of the run is in its wandb files, and nothing but the closing one beside."""
    *measured, closing, tables = history(folder)
    assert [logged(row) for row in measured] == rows(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert closing["step"] == summary["steps"]
    assert closing["in_domain/error"] == summary["metrics"]["in_domain/error"]
    assert {"splits.nrows", "lengths.nrows"} <= tables.keys()


def test_a_killed_run_goes_on_and_wandb_has_every_row_once(here: Here, tmp_path: Path) -> None:
    words = tiny(OFFLINE, "train.steps=300", "train.checkpoint_every=50", "eval.every=100")
    process = start_process(*words, cwd=tmp_path)
    runs = tmp_path / "runs"
    process.wait_for(lambda: list(runs.glob("*/*/*/checkpoint.pt")))
    folder = the_run(runs)
    process.wait_for(lambda: (folder / "metrics.jsonl").read_bytes().count(b"\n") > 120)
    assert process.process.pid is not None
    core = core_of(process.process.pid)
    (before,) = map(start, files(folder))
    process.send(signal.SIGSTOP)
    os.kill(core, signal.SIGKILL)
    process.send(signal.SIGKILL)
    assert process.status == -signal.SIGKILL

    outcome = here(*words)
    assert outcome.status == 0, outcome.err
    all_rows_once(folder)
    (file,) = files(folder)
    for key in ("run_id", "display_name", "job_type", "tags", "project"):
        assert start(file)[key] == before[key]
    assert whole(file)["state"] == "finished"


@pytest.mark.extended
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param([], id="basic"),
        pytest.param(
            ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
            marks=pytest.mark.slow,
            id="joblib",
        ),
    ],
)
def test_the_jobs_of_a_sweep_are_one_group_of_whole_runs(
    here: Here, tmp_path: Path, launcher: list[str]
) -> None:
    line = ["-m", *tiny(OFFLINE, "pe=rope,none", "seed=1", "train.steps=4", "eval.every=2")]
    first = here(*line, *launcher)
    assert first.status == 0, first.err
    folders = sorted((tmp_path / "runs").glob("flipflop/*/seed?-????????"))
    assert len(folders) == 2
    before = start(files(folders[0])[0])
    shutil.rmtree(folders[0])
    outcome = here(*line)
    assert outcome.status == 0, outcome.err
    begun = {}
    for folder in folders:
        all_rows_once(folder)
        (file,) = files(folder)
        begun[folder.parent.name] = start(file)
    for pe in ("rope", "none"):
        assert begun[pe]["display_name"].startswith(f"{pe}-seed1 task=flipflop task.length=16 ")
        assert begun[pe]["job_type"] == pe
    (group,) = {run["run_group"] for run in [before, *begun.values()]}
    assert group.startswith("flipflop--pe--20")
    assert before["run_id"] not in [run["run_id"] for run in begun.values()]
    assert {"flipflop", "rope", "1L-d16"} <= set(begun["rope"]["tags"])


@pytest.mark.extended
def test_pictures_when_asked_for(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tiny(OFFLINE, "tracker.wandb.pictures=true")
    assert here(*words).status == 0
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) == 2
    assert pages[0].name.startswith("in_domain_")
    assert all('class="inspection"' in page.read_text() for page in pages)

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("one\ntwo")

    monkeypatch.setattr("pe_lab.experiment.load_run.inspect_run", fail)
    outcome = here(*words, "seed=1")
    assert outcome.status == 0
    assert "tracker.wandb.pictures=true, but there are none: one two" in outcome.out
    assert len(list(tmp_path.rglob("*.html"))) == 2
    (folder,) = (tmp_path / "runs").glob("*/*/seed1-????????")
    all_rows_once(folder)
