"""The whole step: how much code it passes, and without kernels."""

import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch
from program import ROOT
from torch import Tensor
from trainers import planned

from pe_lab.train.batches import TrainData
from pe_lab.train.plan import Plan
from pe_lab.train.trainer import Trainer, sum_loss

OURS = {ROOT / "pe_lab", ROOT / "tasks"}


def loss_and_gradients(made: Plan) -> dict[str, Tensor]:
    """In float64; gradients by the names of their parameters."""
    model = made.model().double()
    with torch.no_grad():
        # A table that starts at zero would hide what reads it.
        torch.manual_seed(0)
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    batch = TrainData(made.task, 0, 5).batch(0)
    counted = batch.loss_mask(made.task.loss_on)
    drawn = made.positions.of_batch(np.random.default_rng(0), batch, training=True)
    loss = sum_loss(model, batch, counted, torch.from_numpy(drawn))
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


def test_a_training_batch_passes_few_files() -> None:
    """So few that a reader can follow it. The first step also draws batches and checks kernels."""
    trainer = Trainer(planned("pe=cope"), torch.device("cpu"), None, {}, lambda: None)  # type: ignore[arg-type]
    trainer.train_step()
    files = set()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        files.add(Path(frame.f_code.co_filename))

    sys.setprofile(profile)
    try:
        trainer.train_step()
    finally:
        sys.setprofile(None)
    ours = {f"{file.parent.name}/{file.name}" for file in files if OURS & set(file.parents)}
    assert {"train/trainer.py", "models/transformer.py", "pe/cope.py"} <= ours
    assert len(ours) <= 14, sorted(ours)


def test_without_kernels_the_plain_model_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where pe_lab/kernels is deleted."""
    plain = loss_and_gradients(planned("pe=cope", "train.fast=false"))
    for module in [name for name in sys.modules if name.startswith("pe_lab.kernels")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pe_lab.kernels", None)
    with caplog.at_level("INFO", "pe_lab"):
        found = loss_and_gradients(planned("pe=cope"))
    assert "no kernels" in caplog.text
    assert all(torch.equal(found[name], plain[name]) for name in plain)
