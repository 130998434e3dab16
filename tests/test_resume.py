"""A run that is stopped, however rudely, ends with the numbers of one that never was."""

import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from program import (
    ENCODINGS,
    Here,
    assert_refused,
    rows,
    start,
    state,
    succeeded,
    summary,
    the_run,
    tiny,
    working_in,
)
from suites import written

from pe_lab.cli.main import main
from pe_lab.train.trainer import Trainer


def finished(here: Here, *words: str, runs_dir: str = "runs") -> Path:
    """The folder of a run that ends by itself, in this process."""
    succeeded(here(*tiny(*words, f"runs_dir={runs_dir}")))
    return the_run(Path(runs_dir))


def step(cwd: Path) -> int:
    return max((state(p.parent)["step"] for p in cwd.glob("runs/*/*/*/status.json")), default=-1)


def same(folder: Path, other: Path) -> None:
    assert len(rows(other)) >= 15
    assert rows(folder) == rows(other)
    assert summary(folder) == summary(other)
    assert state(folder)["state"] == "finished"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_at_a_checkpoint(here: Here, tmp_path: Path, signum: int) -> None:
    words = ("model.dropout=0.1", "train.steps=60", "train.checkpoint_every=1000")
    whole = finished(here, *words, runs_dir="whole")
    run = start(*tiny(*words), cwd=tmp_path)
    run.wait_for(lambda: written(tmp_path) > 800)
    run.send(signum)
    assert run.status == 128 + signum
    assert "Traceback" not in run.stderr
    folder = the_run(tmp_path / "runs")
    left = state(folder)
    assert left["state"] == "interrupted"
    assert 0 < left["step"] < 60
    assert rows(folder)[-1]["step"] == left["step"]
    assert (folder / "checkpoint.pt").exists()
    assert "run the same command to continue" in (tmp_path / "stdout").read_text()
    same(finished(here, *words), whole)
    assert f"resuming from step {left['step']}" in (folder / "log.txt").read_text()


def test_no_number_is_one_sentence_and_keeps_the_last_good_checkpoint(here: Here) -> None:
    # The rate is harmless until the warm-up has let it grow.
    words = ("train.lr=1e30", "train.clip=null", "train.steps=20", "train.warmup=20",
             "train.checkpoint_every=1", "train.optimizer=adam")  # fmt: skip
    ended = here(*tiny(*words))
    folder = the_run(Path("runs"))
    failed = state(folder)
    at = f"is not finite at step {failed['step'] + 1} (train.lr=1e+30"
    assert_refused(ended, at, "set a lower train.clip", status=1)
    assert (failed["state"], failed["error"] in ended.err) == ("failed", True)
    assert all(math.isfinite(row["train/loss"]) for row in rows(folder))
    good = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert good["step"] == failed["step"] > 0
    assert all(bool(tensor.isfinite().all()) for tensor in good["model"].values())
    again = here(*tiny(*words))
    assert (again.status, again.err) == (1, ended.err)


@pytest.mark.parametrize("at", ["train_step", "save"])
def test_a_folder_that_is_removed_under_a_run(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    whole = getattr(Trainer, at)

    def removed(trainer: Trainer) -> None:
        shutil.rmtree(tmp_path / "runs")
        whole(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, at, removed)
        said = here(*tiny("train.steps=20"))
    assert_refused(said, "was removed while the run was made", "begins it anew", status=1)
    succeeded(here(*tiny("train.steps=2")))


def test_a_finished_run_is_skipped_and_force_keeps_the_old_one(here: Here) -> None:
    line = tiny("train.steps=5")
    folder = finished(here, "train.steps=5")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert "finished already; force=true" in succeeded(here(*line)).out
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before

    for number in (1, 2):
        succeeded(here(*line, "force=true"))
        aside = folder.with_name(f"{folder.name}.replaced-{number}")
        assert (aside / "summary.json").exists()
    first = folder.with_name(f"{folder.name}.replaced-1")
    assert {p.name: p.read_bytes() for p in first.iterdir() if p.is_file()} == before
    assert (rows(folder), summary(folder)["metrics"]) == (rows(first), summary(first)["metrics"])


def test_two_processes_cannot_write_one_run(here: Here, tmp_path: Path) -> None:
    words = tiny("train.steps=10", "eval.sequences=800")
    # Measuring so slowly it is at work for seconds.
    first = start(*words, "eval.batch_tokens=64", cwd=tmp_path)
    first.wait_for(lambda: step(tmp_path) == 10)
    # On a busy machine the second may take longer to start than the first to end.
    first.send(signal.SIGSTOP)
    (tmp_path / "second").mkdir()
    second = start(*words, f"runs_dir={tmp_path / 'runs'}", cwd=tmp_path / "second")
    assert second.status == 1
    assert second.stderr.count("\n") == 1
    assert (
        f"is being written by process {first.process.pid} on {os.uname().nodename}" in second.stderr
    )
    assert not list(tmp_path.glob("runs/*/*/*/summary.json"))
    first.send(signal.SIGKILL)
    assert first.status == -signal.SIGKILL
    # The lock went with the process.
    succeeded(here(*words))


# Room in bytes: for the first files and nothing else, for some rows, for one checkpoint of two.
@pytest.mark.parametrize("room", [0, 16_000, 65_000])
def test_a_full_disk_loses_nothing(here: Here, disk: Callable[[str], Path], room: int) -> None:
    small_disk = disk("1m")
    whole = finished(here, runs_dir="whole")
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        file.write(b"\0" * (1_000_000 - room))

    full = here(*tiny(f"runs_dir={small_disk / 'runs'}"))
    assert_refused(
        full, "disk/runs/", "No space left on device", "choose another runs_dir", status=1
    )
    ballast.unlink()
    same(finished(here, runs_dir=str(small_disk / "runs")), whole)


SMALL = ["model.n_layers=2", "model.dropout=0.1", "train.steps=6", "eval.every=3"]
SMALL += ["train.checkpoint_every=5", "positions=randomized", "eval.quick_sequences=4"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of one sweep over all encodings, in one process."""
    folder = tmp_path_factory.mktemp("sweep")
    with working_in(folder):
        assert main(["-m", *tiny("pe=glob(*)", *SMALL)]) == 0
    return folder / "runs"


@pytest.mark.extended
@pytest.mark.parametrize("pe", ENCODINGS)
def test_stopped_and_resumed_alone_as_in_the_sweep(
    swept: Path, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pe: str
) -> None:
    step = Trainer.train_step

    def signalled(trainer: Trainer) -> Any:
        step(trainer)
        if trainer.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    line = tiny(f"pe={pe}", *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", signalled)
        assert here(*line).status == 128 + signal.SIGTERM
    alone = the_run(tmp_path / "runs")
    assert not (alone / "summary.json").exists()
    succeeded(here(*line))
    same = swept / "flipflop" / pe / alone.name
    assert rows(alone) == rows(same)
    assert summary(alone) == summary(same)
