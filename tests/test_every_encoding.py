"""The whole program with every encoding of conf/pe: alone, in a sweep, stopped and resumed."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from program import ENCODINGS, Here, rows, succeeded, summary, the_run, tiny, working_in

from pe_lab.cli.main import main
from pe_lab.training.trainer import Trainer

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
