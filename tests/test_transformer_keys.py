"""The choices of initial weights and dropout that published transformers differ in."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import small
from torch import nn

from pe_lab.cli.train import checked_jobs
from pe_lab.core.dropout import Drop
from pe_lab.evaluation.contract import models
from pe_lab.models.base import Vocabulary
from pe_lab.models.transformer import FeedForward, Transformer, TransformerConfig
from pe_lab.pe.none import NoPE

SMALL: dict[str, Any] = {
    "n_layers": 2, "d_model": 48, "n_heads": 2, "d_ff": None, "activation": "relu",
    "dropout": 0.0, "norm": "layernorm", "norm_position": "post", "tied_embeddings": False,
}  # fmt: skip
TOKENS = torch.arange(20).view(2, 10) % 7


def built(**keys: Any) -> Transformer:
    cfg = TransformerConfig(**{**SMALL, **keys})
    torch.manual_seed(0)
    return cfg.build(Vocabulary(7), [NoPE(cfg.dims(7, 10, 10))] * 2)


@pytest.mark.parametrize("init", ["scaled", "pytorch"])
def test_initial_weights(init: str) -> None:
    """``pytorch`` is nn.Linear's: uniform in +-1/sqrt(fan in), biases too, nothing divided."""
    model = built(init=init)
    for name, linear in model.blocks.named_modules():
        if isinstance(linear, nn.Linear):
            divided = init == "scaled" and name.endswith("out")
            limit = linear.in_features**-0.5 / (2 if divided else 1)
            assert 0.9 * limit < linear.weight.abs().max() <= limit
            assert 0.8 * limit < linear.bias.abs().max() <= limit or init == "scaled"
            assert bool(linear.bias.any()) == (init == "pytorch")


@pytest.mark.usefixtures("float64")
def test_hidden_units_are_dropped() -> None:
    """As dropout between the two maps of the feed-forward, with a mask of no other place."""
    model = built(dropout=0.3, hidden_dropout=True)
    ff: Any = model.layers[0].ff  # type: ignore[attr-defined]
    assert isinstance(ff, FeedForward)
    h, drop = torch.randn(2, 5, 48), Drop(0.3, 77)
    torch.testing.assert_close(ff(h, drop), ff.out(drop(ff.up(h).relu())))
    keys: list[int] = []
    kept = Drop.kept_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drop, "kept_of", lambda d, *rest: keys.append(d.key) or kept(d, *rest))
        model(TOKENS, torch.arange(10)[None], key=5)
    # The embeddings; attention weights, hidden units and two branches in each layer.
    assert len(set(keys)) == 1 + 2 * 4


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("check", [models.fast_equals_plain, models.scored_positions])
def test_hidden_dropout_is_the_same_with_kernels(check: Callable[..., str]) -> None:
    check(small("transformer") | {"dropout": 0.3, "hidden_dropout": True})


def test_hidden_dropout_without_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hidden_dropout=true has no effect with dropout=0: set"):
        built(hidden_dropout=True)


def test_counting_is_initialised_and_dropped_as_published() -> None:
    """PyTorch's initial weights, hidden units dropped, no warm-up and no clipping."""
    (job,) = checked_jobs(["experiment=paper/counting", "pe=cope"])
    assert (job.model["init"], job.model["hidden_dropout"]) == ("pytorch", True)
    assert (job.train.schedule, job.train.warmup, job.train.clip) == ("constant", 0, None)
