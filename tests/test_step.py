"""The whole step: its fast form is an equal of the plain one (train.fast=false)."""

from typing import Any

import numpy as np
import pytest
import torch
from program import ROOT, tiny
from torch import Tensor

from pe_lab.cli.train import _arguments
from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.config.check import check_composed
from pe_lab.config.compose import compose
from pe_lab.config.schema import register_resolvers
from pe_lab.kernels import dispatch, dropout
from pe_lab.kernels.cpu import add_norm, bias_relu, qkv, rotary
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.training.batches import TrainData, evaluation_set
from pe_lab.training.loss import summed_loss
from pe_lab.training.plan import Plan, plan
from pe_lab.training.trainer import Trainer

ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))

TRUNKS = {
    "pre": (),
    "post": ("model.norm_position=post", "model.activation=gelu"),
    "tied": ("model.tied_embeddings=true", "model.norm=rmsnorm", "model.activation=swiglu"),
}


def planned(monkeypatch: pytest.MonkeyPatch, *words: str) -> Plan:
    monkeypatch.setattr("sys.argv", ["pe-lab"])
    register_resolvers()
    given = tiny(*words)
    if any(word.startswith("model=") for word in words):
        # Not every model has it.
        given.remove("model.n_heads=2")
    (cfg,) = compose(_arguments(given))
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
    pos = torch.from_numpy(made.positions.sample(np.random.default_rng(0), 5, batch.tokens.shape[1],
                                                 training=True))  # fmt: skip
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
        own = fast.model.state_dict()[name]
        # Adam divides by the gradient's size: where that is only rounding, so is the step.
        torch.testing.assert_close(own, expected, rtol=0, atol=max(1e-2 * moved, 1e-6), msg=name)


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("a fast form was taken")


FAST_FORMS = {
    "kernels of attention": (dispatch, "_attend"),
    "a kernel of dropout": (dropout, "_supported"),
    "the kernel of rotation": (rotary._Rotate, "apply"),
    "the kernel of branches and norms": (add_norm._AddNorm, "apply"),
    "the kernel of the feed-forward": (bias_relu, "bias_relu"),
    "the kernel of queries, keys and values": (qkv._Projected, "apply"),
    "PyTorch's own fused attention": (torch.nn.functional, "scaled_dot_product_attention"),
    "the last layer's shortcut": (ScoredPositions, "of_rows_from"),
}


@pytest.mark.parametrize("pe", ENCODINGS)
def test_not_fast_takes_no_fast_form(monkeypatch: pytest.MonkeyPatch, pe: str) -> None:
    copying = ("task=selective_copy", "task.n_copy=3", "task.n_blank=2", "task.n_symbols=3")
    words = (f"pe={pe}", *copying, "model.n_layers=2", "model.dropout=0.1", "train.fast=false")
    made = planned(monkeypatch, *words)
    for where, name in FAST_FORMS.values():
        monkeypatch.setattr(where, name, refused)
    sets = {IN_DOMAIN: evaluation_set(made.task, IN_DOMAIN, 4)}
    trainer = Trainer(made, torch.device("cpu"), None, sets, lambda: None)  # type: ignore[arg-type]
    trainer.train_step()
    trainer.evaluator.answers(IN_DOMAIN)
    if not any(encoding.whole_sequence for encoding in trainer.model.encodings):
        trainer.evaluator.generated(IN_DOMAIN)


@pytest.mark.parametrize("form", FAST_FORMS)
def test_fast_takes_each_fast_form(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Or the test above would see nothing."""
    words = ("pe=cope", "model.dropout=0.1")
    if form.startswith("PyTorch"):
        monkeypatch.setenv("PE_LAB_BACKEND", "eager")
        words = ("pe=alibi",)
    if "queries, keys" in form:
        # Where every place is scored: the last layer's queries are of all of them.
        words += ("task.loss_on=all",)
    if "rotation" in form:
        # Attention's kernel would turn them itself.
        words = ("pe=rope", "model.window=4")
    monkeypatch.setattr(*FAST_FORMS[form], refused)
    made = planned(monkeypatch, *words)
    trainer = Trainer(made, torch.device("cpu"), None, {}, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="a fast form"):
        trainer.train_step()
