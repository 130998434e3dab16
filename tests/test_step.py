"""The whole step: its fast form is an equal of the plain one (train.fast=false)."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from program import ENCODINGS, tiny
from torch import Tensor

from pe_lab.cli.train import arguments
from pe_lab.config.check import check_composed
from pe_lab.config.compose import compose
from pe_lab.config.schema import register_resolvers
from pe_lab.core.dropout import Drop
from pe_lab.kernels.apply import FAST
from pe_lab.training.batches import TrainData
from pe_lab.training.loss import summed_loss
from pe_lab.training.plan import Plan, plan
from pe_lab.training.trainer import Trainer

TRUNKS = {
    "pre": (),
    "post": ("model.norm_position=post", "model.activation=gelu"),
    "tied": ("model.tied_embeddings=true", "model.norm=rmsnorm", "model.activation=swiglu"),
}


def planned(monkeypatch: pytest.MonkeyPatch, *words: str) -> Plan:
    monkeypatch.setattr("sys.argv", ["pe-lab"])
    register_resolvers()
    line = tiny(*words)
    if any(word.startswith("model=") for word in words):
        # Not every model has it.
        line.remove("model.n_heads=2")
    (cfg,) = compose(arguments(line))
    return plan(check_composed(cfg))


def loss_and_gradients(made: Plan, changed: Any = None, key: int = 7) -> dict[str, Tensor]:
    """In float64; gradients by the names of their parameters."""
    model = made.model().double()
    with torch.no_grad():
        # A table that starts at zero would hide what reads it.
        torch.manual_seed(0)
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    batch = TrainData(made.task, 0, 5).batch(0)
    counted = made.task.trained(batch)
    drawn = made.positions.of_batch(np.random.default_rng(0), batch, training=True)
    pos = torch.from_numpy(drawn)
    loss = summed_loss(model, batch, counted, pos, key)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize(
    ("pe", "trunk"),
    [
        *(("rope", "pre"), ("cope", "pre"), ("t5", "pre"), ("none", "pre"), ("fox", "pre")),
        *(("cope", "post"), ("alibi", "post"), ("rope", "tied"), ("cope", "tied")),
    ],
)
def test_fast_is_plain(monkeypatch: pytest.MonkeyPatch, pe: str, trunk: str) -> None:
    words = (f"pe={pe}", *TRUNKS[trunk], "model.dropout=0.3", "task.p_ignore=0.5")
    fast = loss_and_gradients(planned(monkeypatch, *words))
    plain = loss_and_gradients(planned(monkeypatch, *words, "train.fast=false"))
    assert fast.keys() == plain.keys()
    for name, expected in plain.items():
        size = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(fast[name], expected, rtol=0, atol=1e-11 * size, msg=name)
    # The mask is the key's: with another one all of this would be different.
    other = loss_and_gradients(planned(monkeypatch, *words), key=8)
    assert abs(float(other["loss"] - fast["loss"])) > 1e-3


@pytest.mark.parametrize("positions", ["sequential", "randomized"])
def test_training_is_the_same_either_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, positions: str
) -> None:
    """In float32, over some steps, in parts, with and without fast forms."""
    words = ("pe=rope", f"positions={positions}", "model.dropout=0.2", "train.accumulate=2",
             *(["positions.max=64"] if positions == "randomized" else []))  # fmt: skip
    trained = []
    for also in ((), ("train.fast=false",)):
        made = planned(monkeypatch, *words, *also)
        trainer = Trainer(made, torch.device("cpu"), None, {}, lambda: None)  # type: ignore[arg-type]
        for _ in range(4):
            trainer.train_step()
        trained.append(trainer)
    fast, plain = trained
    torch.testing.assert_close(fast.loss_sum, plain.loss_sum, rtol=1e-5, atol=0)
    start = plain.plan.model().state_dict()
    for name, expected in plain.model.state_dict().items():
        moved = float((expected - start[name]).abs().max())
        value = fast.model.state_dict()[name]
        # Adam divides by the gradient's size: where that is only rounding, so is the step.
        torch.testing.assert_close(value, expected, rtol=0, atol=max(1e-2 * moved, 1e-6), msg=name)


def test_without_kernels_the_plain_model_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where pe_lab/kernels is deleted."""
    plain = loss_and_gradients(planned(monkeypatch, "pe=cope", "train.fast=false"))
    fast = planned(monkeypatch, "pe=cope").model()
    for module in [name for name in sys.modules if name.startswith("pe_lab.kernels")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pe_lab.kernels", None)
    with caplog.at_level("INFO", "pe_lab"):
        found = loss_and_gradients(planned(monkeypatch, "pe=cope"))
    assert "no kernels" in caplog.text
    assert all(torch.equal(found[name], plain[name]) for name in plain)
    assert fast.dropout_type is not Drop


@pytest.mark.parametrize("pe", ENCODINGS)
def test_fast_is_made_of_fast_modules(monkeypatch: pytest.MonkeyPatch, pe: str) -> None:
    """And not fast of plain ones: what each kernel computes is tested beside it."""
    words = (f"pe={pe}", "model.n_layers=2", "model.n_heads=2")
    fast = planned(monkeypatch, *words).model()
    plain = planned(monkeypatch, *words, "train.fast=false").model()
    assert fast.state_dict().keys() == plain.state_dict().keys()
    assert not {type(module) for module in plain.modules()} & {*FAST.values()}
    assert plain.dropout_type is Drop
    assert not {type(module) for module in fast.modules()} & FAST.keys()
