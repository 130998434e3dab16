"""Many seeds at once: each run comes out as it would alone, and ends as it would alone.

How equal: in float64 the weights after some steps differ by less than 1e-10. In float32, where
sums are taken in another order, the losses of the first 20 steps differ by less than 1e-4 of them
and the weights after them by less than 1e-4, but for the keys' bias: softmax does not see it, its
gradient is nothing but rounding, and Adam makes steps of full length of that.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from offline_wandb import files, history
from offline_wandb import start as begun
from offline_wandb import whole as summed_up
from omegaconf import OmegaConf
from program import Here, Outcome, rows, start, state, summary, tiny
from test_chaos import folders
from test_sweeps import table

from pe_lab.cli.train import checked_jobs
from pe_lab.common.errors import RunError, UsageError
from pe_lab.experiment.run import folder_of, run
from pe_lab.store import checkpoint
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps import batched as launcher
from pe_lab.sweeps import pace
from pe_lab.sweeps.launchers import check_numbers
from pe_lab.sweeps.pace import Pace, measured_pace
from pe_lab.training.batched import Batched
from pe_lab.training.plan import plan
from pe_lab.training.trainer import Trainer

BATCHED = ("-m", "hydra/launcher=batched", "hydra.launcher.how=batched")


CASES = {
    "cope": ("pe=cope", "model.dropout=0.1", "model.n_layers=2"),
    "rope": ("pe=rope", "train.clip=null", "task.loss_on=all", "model.norm=rmsnorm"),
    "t5": ("pe=t5", "model.norm_position=post", "train.optimizer=adam", "model.n_layers=2"),
    "learned": (
        "pe=learned", "model.dropout=0.2", "positions=randomized", "positions.max=64",
        "model.tied_embeddings=true", "train.accumulate=3",
    ),
    "transformer_xl": ("pe=transformer_xl", "model.activation=swiglu", "train.betas=[0.8,0.9]"),
    "path": ("pe=path", "task.train_sequences=20", "model.n_layers=2", "train.clip=0.1"),
    "the formulas": ("pe=cope", "train.fast=false", "model.dropout=0.1"),
}  # fmt: skip


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_step_is_that_of_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, float64: None, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.argv", ["pe-lab"])
    (config,) = checked_jobs(tiny(*words))
    configs = [
        replace(config, seed=seed, train=replace(config.train, lr=lr))
        for seed in (0, 1)
        for lr in (1e-3, 1e-2)
    ]

    def trainers() -> list[Trainer]:
        made = [
            Trainer(plan(c), torch.device("cpu"), RunFolder(tmp_path), {}, lambda: None)
            for c in configs
        ]
        for _ in range(3):
            # One is ahead of the others, in rate and Adam's correction too.
            made[1].train_step()
        return made

    alone, together = trainers(), trainers()
    batched = Batched(together)
    for number in range(4):
        taken = batched.step([trainer.parts() for trainer in together])
        for one, other, step in zip(alone, together, taken, strict=True):
            before = one.loss_sum.clone()
            one.train_step()
            other._count(step.loss)
            torch.testing.assert_close(
                torch.tensor(step.loss), one.loss_sum - before, rtol=1e-10, atol=0
            )
            if number == 1:
                # A step that each takes itself.
                one.train_step()
                other.train_step()
    for one, other in zip(alone, together, strict=True):
        expected, found = one.model.state_dict(), other.model.state_dict()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        expected, found = one.optimizer.state_dict(), other.optimizer.state_dict()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def near(folder: Path, other: Path) -> None:
    """Both are finished, and have the same numbers."""
    assert [state(f)["state"] for f in (folder, other)] == ["finished"] * 2
    ours, theirs = rows(folder), rows(other)
    assert [row.keys() for row in ours] == [row.keys() for row in theirs]
    for mine, row in zip(ours, theirs, strict=True):
        losses = {key for key in row if key.endswith("loss")}
        assert {k: mine[k] for k in losses} == pytest.approx({k: row[k] for k in losses}, rel=1e-4)
        assert (mine["step"], mine.get("train/lr")) == (row["step"], row.get("train/lr"))
    mine, row = summary(folder), summary(other)
    assert mine.pop("metrics") == pytest.approx(row.pop("metrics"), abs=0.02)
    mine.pop("by"), row.pop("by")
    assert mine == row
    torch.testing.assert_close(*(weights(f) for f in (folder, other)), rtol=0, atol=1e-4)
    sizes = [(f / "checkpoint.pt").stat().st_size for f in (folder, other)]
    assert sizes[0] < 1.2 * sizes[1]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Those of the checkpoint, the keys' bias left out."""
    saved: dict[str, torch.Tensor] = checkpoint.load(folder / "checkpoint.pt")["model"]
    for name, tensor in saved.items():
        if name.endswith("qkv.bias"):
            tensor.view(3, -1)[1] = 0
    return saved


def lone(words: list[str]) -> None:
    """Each run of the line by itself, in ``alone/runs``."""
    for config in checked_jobs(["-m", *words, "runs_dir=alone/runs"]):
        with suppress(RunError):
            run(config)


def all_near(cwd: Path, other: Path) -> None:
    ours, theirs = folders(cwd), folders(other)
    assert ours.keys() == theirs.keys()
    for name, folder in ours.items():
        near(folder, theirs[name])


def test_every_run_writes_what_it_would_alone(here: Here, tmp_path: Path) -> None:
    words = tiny("pe=cope", "seed=0,1", "train.lr=1e-3,3e-3", "model.dropout=0.1")
    lone(words)
    ended = here(*BATCHED, *words, "runs_dir=runs")
    assert (ended.status, ended.err) == (0, "")
    assert [row[-2] for row in table(ended.out)] == ["finished"] * 4
    assert len(re.findall(r"^\[\d+/4\] flipflop \w+ seed \d .*finished, in_dom", ended.out, re.M))
    all_near(tmp_path, tmp_path / "alone")
    for folder in folders(tmp_path).values():
        (begun_with,) = json.loads((folder / "environment.json").read_text())
        assert begun_with["attention"] is None
        assert not (folder / "log.txt").exists()
    assert "4 of them finished before" in here("-m", *words).out


def stopped_at(step: int, monkeypatch: pytest.MonkeyPatch, run: Callable[[], Outcome]) -> Outcome:
    """``run`` with a signal that comes during that step of the batch."""
    taken, count = Batched.step, iter(range(1, 1000))

    def signalled(self: Batched, read: Any) -> Any:
        # Others are throw-away copies.
        run = self.trainers[0].folder.path.name.startswith("seed")
        if run and next(count) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return taken(self, read)

    with monkeypatch.context() as patch:
        patch.setattr(Batched, "step", signalled)
        return run()


def test_a_signal_stops_all_and_either_way_goes_on(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tiny("pe=cope", "model.dropout=0.1", "train.accumulate=2")
    lone([*words, "seed=range(3)"])
    some = (*BATCHED, *words, "seed=0,1", "runs_dir=runs")
    assert stopped_at(5, monkeypatch, lambda: here(*some)).status == 143
    line = (*BATCHED, *words, "seed=range(3)", "runs_dir=runs")
    # Two go on from step 5, one begins.
    stopped = stopped_at(9, monkeypatch, lambda: here(*line))
    assert stopped.status == 143
    assert [row[2] for row in table(stopped.out)] == [
        *["interrupted at step 14 of 20"] * 2, "interrupted at step 9 of 20",
    ]  # fmt: skip
    for folder in folders(tmp_path).values():
        assert (folder / "log.txt").read_text().count("stopped by a signal") in (1, 2)
    by_itself = here(*words, "seed=0", "runs_dir=runs")
    assert by_itself.status == 0
    assert "attention changed since this run was begun" in by_itself.out
    ended = here(*line)
    assert (ended.status, ended.err) == (0, "")
    assert [row[2] for row in table(ended.out)] == ["finished before", "finished", "finished"]
    all_near(tmp_path, tmp_path / "alone")


@pytest.mark.slow
def test_killed_it_goes_on_from_the_checkpoints(here: Here, tmp_path: Path) -> None:
    words = tiny("seed=0,1")
    lone(words)
    run = start(*BATCHED, *words, "runs_dir=runs", cwd=tmp_path)
    run.wait_for(lambda: len(list(tmp_path.glob("runs/*/*/*/checkpoint.pt"))) == 2)
    run.send(signal.SIGKILL)
    assert run.status == -signal.SIGKILL
    left = list(folders(tmp_path).values())
    assert {state(folder)["state"] for folder in left} == {"running"}
    # A kill may come before one of them has written its checkpoint.
    (left[0] / "checkpoint.pt").unlink()
    ended = here(*BATCHED, *words, "runs_dir=runs")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("going on from step") == 1
    all_near(tmp_path, tmp_path / "alone")


def test_one_that_stops_early_leaves_the_others(here: Here, tmp_path: Path) -> None:
    words = tiny(
        "seed=0,1", "eval.every=1", "train.stop_below=0.5", "train.patience=2",
        "train.lr=3e-3,1e-3", "train.steps=12",
    )  # fmt: skip
    lone(words)
    assert here(*BATCHED, *words, "runs_dir=runs").status == 0
    all_near(tmp_path, tmp_path / "alone")
    assert len({state(folder)["step"] for folder in folders(tmp_path).values()}) > 2


def test_what_fails_in_one_run_fails_that_run(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint.save

    def full(path: Path, content: dict[str, Any]) -> None:
        if "seed1-" in str(path) and content["step"] == 14:
            # The one that is left goes on alone.
            raise RunError("the disk is full")
        save(path, content)

    words = tiny("train.lr=1e-3,1e30", "seed=0,1", "train.clip=null", "train.warmup=20")
    words += ["train.optimizer=adam"]
    lone(words)
    monkeypatch.setattr(checkpoint, "save", full)
    ended = here(*BATCHED, *words, "runs_dir=runs")
    assert ended.status == 1
    told = [row[3] for row in table(ended.out)]
    assert [row[:8] for row in told] == ["finished", "failed: ", "failed: ", "failed: "]
    assert told[1] == "failed: the disk is full"
    alone = folders(tmp_path / "alone")
    for name, folder in folders(tmp_path).items():
        if state(folder)["state"] == "finished":
            near(folder, alone[name])
        elif state(folder)["error"] != "the disk is full":
            assert "Traceback" in (folder / "log.txt").read_text()
            told_alone = state(alone[name])["error"].replace("alone/runs", "runs")
            assert re.sub(r"\(.*?\)", "", state(folder)["error"]) == re.sub(
                r"\(.*?\)", "", told_alone
            )
            assert "is not finite at step" in told_alone
    monkeypatch.undo()


def test_a_folder_that_another_process_writes(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "HELD_S", 0.3)
    words = tiny("seed=range(3)", "train.steps=4", "train.warmup=1")
    held = folder_of(plan(checked_jobs(["-m", *words])[1]))
    with held.lock():
        ended = here(*BATCHED, *words)
    assert ended.status == 1
    assert ended.err.startswith("pe-lab: 1 held of 3 jobs")
    assert [row[2].partition(":")[0] for row in table(ended.out)] == [
        "finished",
        "held",
        "finished",
    ]


def test_a_common_warning_is_told_once(here: Here, tmp_path: Path) -> None:
    words = tiny("seed=0,1", "train.steps=2", "train.warmup=9")
    ended = here(*BATCHED, *words)
    assert (ended.status, ended.out.count("is not over at the last step")) == (0, 1)
    for folder in folders(tmp_path).values():
        assert (folder / "log.txt").read_text().count("is not over at the last step") == 1


def test_the_time_of_reading_is_shared_too(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Trainer.parts

    def slow(trainer: Trainer) -> Any:
        time.sleep(0.1)
        return read(trainer)

    monkeypatch.setattr(Trainer, "parts", slow)
    monkeypatch.setattr(launcher, "measured_pace", lambda plans, device, most: Pace(2, 1, 2))
    assert here(*BATCHED, *tiny("seed=0,1", "train.steps=2", "train.warmup=1")).status == 0
    for folder in folders(tmp_path).values():
        spent = json.loads((folder / "summary.json").read_text())["metrics"]["time/train_s"]
        assert spent > 2 * 0.1


def test_what_is_measured_decides(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[str] = []
    step = Batched.step

    def noted(self: Batched, read: Any) -> Any:
        stepped.append(f"{self.trainers[0].plan.config.names['pe']} {len(self.trainers)}")
        return step(self, read)

    alone_s = {"none": 1.0, "rope": 3.0}
    monkeypatch.setattr(
        launcher,
        "measured_pace",
        lambda plans, device, most: Pace(2, 2, alone_s[plans[0].config.names["pe"]]),
    )
    monkeypatch.setattr(Batched, "step", noted)
    words = tiny("pe=none,rope", "seed=0,1", "train.steps=3", "train.warmup=1")
    ended = here("-m", "hydra/launcher=batched", *words)
    assert ended.status == 0
    for pe, chosen in {"none": "one after another", "rope": "2 at once"}.items():
        said = f"flipflop {pe}, 2 runs: 2000.00 ms a step and run with 2 at once, "
        assert f"{said}{1e3 * alone_s[pe]:.2f} alone: {chosen}\n" in ended.out
    assert stepped == ["rope 2"] * 3


def test_as_many_are_tried_as_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pe-lab"])
    plans = [plan(config) for config in checked_jobs(["-m", *tiny("seed=range(7)")])]
    cpu = torch.device("cpu")
    measured = measured_pace(plans, cpu, 2)
    assert (measured.at_once, measured.alone_s > 0, measured.together_s > 0) == (2, True, True)
    tried: list[int] = []
    took = {2: 3.0, 4: 2.0, 5: 1.0, 7: 1.99}

    def timed(together: list[Trainer], alone: Trainer) -> Pace:
        assert [copy.plan for copy in together] == plans[: len(together)]
        tried.append(len(together))
        return Pace(len(together), took[len(together)], 5.0)

    monkeypatch.setattr(pace, "_timed", timed)
    # Not much faster: four are enough.
    assert measured_pace(plans, cpu, 64) == Pace(4, 2.0, 5.0)
    assert measured_pace(plans, cpu, 5) == Pace(5, 1.0, 5.0)
    assert tried == [2, 4, 7, 2, 4, 5]


ENCODING = """
from pe_lab.pe.none import NoPE

class Asking(NoPE):
    def embed(self, x, *given):
        return x * (1 + float(x.detach().mean()))
"""


def test_what_cannot_be_trained_together_is_trained_alone(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asking.py").write_text(ENCODING)
    (tmp_path / "pe").mkdir()
    (tmp_path / "pe/asking.yaml").write_text("_target_: asking.Asking\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("seed=0,1", "train.steps=3", "train.warmup=1")
    ended = here(*BATCHED, "--config-dir", str(tmp_path), *tiny("pe=asking", *words))
    assert ended.status == 0
    assert "2 runs: one after another, together is not possible: " in ended.out
    half = here(*BATCHED, *tiny(*words, "train.precision=bfloat16"))
    assert half.status == 0
    assert "2 runs: one after another, not together but in float32" in half.out


def test_each_run_has_its_own_in_wandb(tmp_path: Path) -> None:
    words = tiny("seed=0,1", "train.lr=1e-3,1e30", "train.clip=null", "train.steps=12")
    words = [word for word in words if "wandb" not in word]
    run = start(*BATCHED, *words, "tracker.wandb.mode=offline", cwd=tmp_path)
    assert run.status == 1
    ids = set()
    for folder in folders(tmp_path).values():
        (file,) = files(folder)
        ids.add(begun(file)["run_id"])
        sent = [row for row in history(folder) if "train/loss" in row]
        assert [row["step"] for row in sent] == [
            row["step"] for row in rows(folder) if "train/loss" in row
        ]
        finished = state(folder)["state"] == "finished"
        assert ("in_domain/error" in summed_up(file)["summary"]) == finished
    assert len(ids) == 4


def test_what_the_launcher_refuses(here: Here, tmp_path: Path) -> None:
    ended = here("-m", "hydra/launcher=batched", *tiny("seed=0,1", "hydra.launcher.how=fast"))
    assert ended.status == 2
    assert "hydra.launcher.how=fast is not allowed: set it to measure, batched or a" in ended.err
    assert not folders(tmp_path)


@pytest.mark.parametrize(
    ("asked", "sweeper", "told"),
    [
        ({"most": 0}, "basic", "most=0 is not allowed: set it to a whole number from 1"),
        ({"most": True}, "basic", "most=True is not allowed: set it to a whole number from 1"),
        ({"most": None}, "basic", "most=null is not allowed: set it to a whole number from 1"),
        ({"how": None}, "basic", "how=None is not allowed: set it to measure, batched or alone"),
        ({"n_jobs": 2}, "basic", "hydra.launcher.n_jobs is no key of hydra/launcher=batched"),
        ({}, "optuna", "is not allowed in a search"),
    ],
)
def test_what_it_checks(asked: dict[str, Any], sweeper: str, told: str) -> None:
    given = {"_target_": launcher.BATCHED, "how": "measure", "most": 64, **asked}
    choices = {"hydra/launcher": "batched", "hydra/sweeper": sweeper}
    cfg = OmegaConf.create(
        {"hydra": {"launcher": given, "sweeper": {}, "runtime": {"choices": choices}}}
    )

    def check() -> None:
        check_numbers(cfg)
        launcher.check_batched(cfg)

    with pytest.raises(UsageError, match=re.escape(told)):
        check()
