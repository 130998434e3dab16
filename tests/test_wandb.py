"""wandb has every row of a run once, also of one that was resumed."""

import json
import math
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from offline_wandb import (
    CONFIG,
    RUN_ID,
    SUMMARY,
    core_of,
    files,
    history,
    records,
    row,
    start,
    started,
    warnings,
    whole,
    write_metrics,
)
from program import Here, rows, succeeded, the_run, tiny
from program import start as start_process

from pe_lab.core.tracker import SPLIT_COLUMNS
from pe_lab.experiment.trackers.wandb import WandbFolder, WandbTracker, sync_command

pytestmark = pytest.mark.usefixtures("no_wandb_account")


def test_an_offline_run_reads_back(
    tmp_path: Path, no_wandb_account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    rows = [
        {"step": 10, "train/loss": 2.0, "lr": 0.1},
        {"step": 20, "train/loss": 1.0, "lr": math.nan},
        {"step": 20, "ood/long/error": 0.5, "ood/far/error": 1.0, "ood/long/n": 4},
        {"step": 30, "train/loss": 1.5, "lr": None},
    ]
    run = started(tmp_path)
    for one in rows:
        run.log(one)
    run.finish(SUMMARY, 0)
    run.log(row(40))
    run.finish(None, 1)

    (file,) = files(tmp_path)
    begun = start(file)
    assert begun["run_id"].startswith(RUN_ID + "-")
    assert (begun["run_group"], begun["job_type"]) == ("sweep-1", "cope")
    assert (begun["project"], begun["tags"]) == ("pe-lab-test", ["flipflop", "cope", "1L-d128"])
    assert begun["git"] == {"commit": "0123abcd" * 5}
    metrics = [record["metric"] for record in records(file) if record["type"] == "metric"]
    assert {"name": "step", "options": {"defined": True, "hidden": True}} in metrics
    assert any((m.get("glob_name"), m.get("step_metric")) == ("*", "step") for m in metrics)
    hidden = {m["name"] for m in metrics if m.get("options", {}).get("hidden")}
    assert hidden == {"step", "ood/long/n", "in_domain/error_low"}

    items = history(tmp_path)
    assert [item["step"] for item in items] == [10, 20, 20, 30, 30, 30]
    assert items[0] == rows[0]
    assert items[2] == rows[2]
    assert items[4] == {
        **{"step": 30, "in_domain/error": 0.25, "in_domain/error_low": 0.2},
        **{"in_domain/loss": 0.5, "ood/long/error": 0.75, "ood/far/error": 0.25},
    }

    read = whole(file)
    assert read["config"] == {**CONFIG, "setting": "cope model.d_model=128"}
    assert (read["state"], read["exit_code"]) == ("finished", 0)
    numbers = {key: value for key, value in SUMMARY["metrics"].items() if value is not None}
    assert numbers.items() <= read["summary"].items()
    # One split was not measured.
    assert "ood/error" not in read["summary"]
    assert read["summary"]["train/loss"] == 1.5
    # What they hold is in test_wandb_labels.py.
    lengths, table = sorted((tmp_path / "wandb").rglob("media/table/*.table.json"))
    assert json.loads(lengths.read_text())["columns"] == ["split", "length", "error", "n"]
    assert json.loads(table.read_text())["columns"] == list(SPLIT_COLUMNS)

    assert not warnings(caplog)
    assert list(no_wandb_account.iterdir()) == []
    assert not list((tmp_path / "home").rglob("staging"))
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_system_metrics_are_off_by_default_and_packages_are_listed(tmp_path: Path) -> None:
    for metrics in (False, True):
        folder = tmp_path / str(metrics)
        run = started(folder, **({"system_metrics": True} if metrics else {}))
        assert isinstance(run._tracker, WandbTracker)
        assert run._tracker._run.settings.x_disable_stats is not metrics
        run.finish(None, 0)
        (packages,) = folder.rglob("requirements.txt")
        assert "torch==" in packages.read_text()


def forget_logged(run: Path) -> None:
    """Leave what a killed process does."""
    file = run / "wandb" / "rows"
    rows = json.loads(file.read_text())
    del rows["logged"]
    file.write_text(json.dumps(rows))


def rows_in(folder: WandbFolder) -> list[int]:
    """How many rows a process need not log again: online, and offline."""
    found = []
    for mode in ("online", "offline"):
        folder.read(mode)
        found.append(folder.rows)
    return found


def test_how_many_rows_earlier_processes_logged(tmp_path: Path) -> None:
    """A server that does not count the rows it has, as openwandb, gets none a second time."""
    folder = WandbFolder(tmp_path)
    assert rows_in(folder) == [0, 0]
    first = folder.id
    folder.begin()
    folder.end(7, online=True)
    assert rows_in(folder) == [7, 7]
    folder.begin()
    folder.end(9, online=False)
    assert rows_in(folder) == [7, 9]
    # Killed: how many rows were logged is unknown.
    folder.begin()
    assert rows_in(folder) == [7, 0]
    assert folder.id == first


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"[]", "rows is not as pe-lab writes it"),
        (b'{"id": "abcdef", "sent": -1}', "(sent=-1"),
        (b'{"id": "../../x", "sent": 0}', "(id='../../x'"),
        (b"[", "rows cannot be read"),
        (b"\xff", "rows cannot be read"),
        (None, "rows cannot be read"),
    ],
)
def test_a_broken_file_is_one_sentence_and_the_rows_are_logged_as_another_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, part: str
) -> None:
    folder = WandbFolder(tmp_path)
    folder.read("offline")
    before = folder.id
    folder.end(7, online=True)
    if content is None:
        (tmp_path / "rows").unlink()
        (tmp_path / "rows").mkdir()
    else:
        (tmp_path / "rows").write_bytes(content)
    folder.read("offline")
    assert folder.rows == 0
    assert folder.id != before
    (line,) = warnings(caplog)
    assert part in line
    assert line.endswith("logged as another run")


def test_a_sync_line_quotes_the_folder_and_names_the_option_for_online_runs() -> None:
    for folder, expected in (
        ("/a b/wandb/offline-run-1", "wandb sync '/a b/wandb/offline-run-1'"),
        ("/a/wandb/run-1", "wandb sync --no-skip-online /a/wandb/run-1"),
    ):
        assert sync_command(SimpleNamespace(dir=f"{folder}/files", id="1")) == expected


def test_runs_of_one_process_stay_apart_and_equal_ones_of_two_folders_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The first is left open, as by an exception: the second must not write into it.
    first, second = started(tmp_path / "0"), started(tmp_path / "1")
    second.log(row(7))
    second.finish(None, 1)
    first.log(row(0))
    first.finish(None, 0)
    assert history(tmp_path / "0") == [row(0)]
    assert history(tmp_path / "1") == [row(7)]
    (one,), (other,) = files(tmp_path / "0"), files(tmp_path / "1")
    assert whole(other)["exit_code"] == 1
    assert start(one)["run_id"] != start(other)["run_id"]
    assert not warnings(caplog)


@pytest.mark.parametrize("end", ["interrupted", "killed", "its file is gone"])
def test_a_resumed_run_has_every_row_once(
    tmp_path: Path, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped after 200 rows, of which the checkpoint counts 180."""
    first = started(tmp_path)
    for step in range(200):
        first.log(row(step))
    first.finish(None, 1)
    (file,) = files(tmp_path)
    run_id = start(file)["run_id"]
    if end != "interrupted":
        forget_logged(tmp_path)
    if end == "killed":
        with file.open("r+b") as handle:
            handle.truncate(file.stat().st_size // 2)
    if end == "its file is gone":
        shutil.rmtree(file.parent)
    write_metrics(tmp_path, [row(step) for step in range(180)])

    second = started(tmp_path)
    for step in range(180, 210):
        second.log(row(step))
    second.finish(SUMMARY, 0)
    *logged, closing, tables = history(tmp_path)
    assert logged == [row(step) for step in range(210)]
    assert closing["in_domain/error"] == 0.25
    assert (tables["step"], tables["splits.nrows"]) == (30, 4)
    count = 2 if end == "interrupted" else 1
    assert [start(file)["run_id"] for file in files(tmp_path)] == [run_id] * count
    assert not warnings(caplog)


def test_a_run_that_was_killed_and_synced_becomes_another_run(tmp_path: Path) -> None:
    """How many of its rows reached the server is unknown."""
    first = started(tmp_path)
    first.log(row(0))
    first.finish(None, 1)
    (file,) = files(tmp_path)
    forget_logged(tmp_path)
    file.with_suffix(".wandb.synced").touch()
    write_metrics(tmp_path, [row(0)])

    second = started(tmp_path)
    second.log(row(1))
    second.finish(None, 1)
    steps = sorted(item["step"] for item in history(tmp_path))
    assert steps == [0, 0, 1]
    assert len({start(file)["run_id"] for file in files(tmp_path)}) == 2


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


@pytest.mark.extended
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

    succeeded(here(*words))
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
    succeeded(here(*line, *launcher))
    folders = sorted((tmp_path / "runs").glob("flipflop/*/seed?-????????"))
    assert len(folders) == 2
    before = start(files(folders[0])[0])
    shutil.rmtree(folders[0])
    succeeded(here(*line))
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
