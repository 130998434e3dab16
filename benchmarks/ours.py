"""What is measured of pe-lab: a training step, and attention by itself."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_module
from torch import nn

from benchmarks.gauges import Step
from pe_lab.config.compose import check_composed
from pe_lab.config.schema import Config, TrainConfig
from pe_lab.core.dropout import Drop
from pe_lab.core.instantiate import instantiate
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Bools
from pe_lab.kernels.apply import accelerate
from pe_lab.models.base import Model
from pe_lab.models.config import Vocabulary
from pe_lab.models.transformer import TransformerConfig
from pe_lab.tasks.flipflop import FlipFlop
from pe_lab.train.encodings import build_encodings
from pe_lab.train.optimizer import Adam
from pe_lab.train.trainer import summed_loss

SIZES = {
    "tiny": ("model.n_layers=1", "model.n_heads=2", "model.d_model=16"),
    "small": ("model.n_layers=2", "model.n_heads=4", "model.d_model=64"),
    "paper": ("model.n_layers=4", "model.n_heads=4", "model.d_model=256"),
}
P_IGNORE = 0.8
"""As task=flipflop: one token in twenty is read, and so scored."""
VOCABULARY = len(FlipFlop(length=16, p_ignore=P_IGNORE, splits={}).vocab)


@dataclass(frozen=True)
class Built:
    """A step to run repeatedly, and facts about it."""

    step: Step
    facts: dict[str, Any] = field(default_factory=dict)


def composed(*overrides: str) -> Config:
    """The configuration of a run with these overrides."""
    with initialize_config_module("pe_lab.conf", version_base="1.3"):
        return check_composed(compose("config", list(overrides), return_hydra_config=True))


def sized(encoding: str, size: str, dropout: float, *overrides: str) -> Config:
    """The configuration of a model of this size with this encoding."""
    return composed(f"pe={encoding}", *SIZES[size], f"model.dropout={dropout}", *overrides)


def transformer(config: Config) -> TransformerConfig:
    """The sizes of its model."""
    return instantiate(config.model, "model", TransformerConfig)


def model_of(config: Config, length: int) -> Model:
    """The model for flip-flop sequences of this length, with kernels where ``train.fast``."""
    torch.manual_seed(0)
    cfg = transformer(config)
    encodings = build_encodings(config.pe, cfg.dims(VOCABULARY, length, length))
    model = cfg.build(Vocabulary(VOCABULARY), encodings)
    if config.train.fast:
        accelerate(model)
    return model


def flipflop(length: int, batch: int, counted: str) -> Batch:
    """Flip-flop sequences cut to a length of any parity.

    Args:
        counted: ``all``: every position is scored; ``reads``: those that the task scores.
    """
    task = FlipFlop(length=2 * (length // 2) + 2, p_ignore=P_IGNORE, splits={})
    whole = task.sample(generator(0, "benchmark"), batch)
    tokens, targets, scored = (x[:, :length] for x in (whole.tokens, whole.targets, whole.scored))
    return Batch(tokens, targets, np.ones_like(scored) if counted == "all" else scored)


def training_step(cfg: TrainConfig, model: Model) -> Callable[[Batch, Bools], None]:
    """A whole training step on a batch, given the positions that count."""
    optimizer = Adam(cfg, model.parameters())
    model.train()

    def step(batch: Batch, counted: Bools) -> None:
        pos = torch.arange(batch.tokens.shape[1])[None]
        with torch.autocast("cpu", torch.bfloat16, enabled=cfg.precision == "bfloat16"):
            loss = summed_loss(model, batch, counted, pos)
        torch.autograd.backward(loss / int(counted.sum()))
        optimizer.clip()
        optimizer.step(cfg.lr)

    return step


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """All parameters, and those in the trunk's matrices (the encoding's tables left out)."""
    named = dict(model.named_parameters())
    encoding = ("encoding", "rel_pos", "cope")
    trunk = [
        p for name, p in named.items() if p.dim() >= 2 and not any(e in name for e in encoding)
    ]
    return {
        "parameters": sum(p.numel() for p in named.values()),
        "trunk": sum(p.numel() for p in trunk),
    }


def step(
    encoding: str,
    size: str,
    length: int,
    batch: int,
    dropout: float,
    counted: str,
    overrides: list[str],
) -> Built:
    """A training step: forward, cross-entropy, backward, clipping, AdamW."""
    config = sized(encoding, size, dropout, *overrides)
    data = flipflop(length, batch, counted)
    model = model_of(config, length)
    run = training_step(config.train, model)
    facts = {**parameter_counts(model), "scored": float(data.scored.mean())}
    return Built(lambda: run(data, data.scored), facts)


def attention(encoding: str, size: str, length: int, batch: int, dropout: float) -> Built:
    """Attention forward and backward from queries, keys and values that lie side by side, as the
    linear layer leaves them."""
    model = model_of(sized(encoding, size, dropout), length)
    core: Any = model.get_submodule("blocks.0.attention")
    width = core.out.in_features
    core.qkv = core.out = nn.Identity()
    x = torch.randn(batch, length, 3 * width, requires_grad=True)
    grad = torch.randn(batch, length, width)
    pos = torch.arange(length)[None]

    def run() -> None:
        # A new dropout key for every step, as in a run.
        drop = Drop(dropout, int(torch.randint(2**62, ()))) if dropout else None
        mixed, _ = core(x, pos, drop=drop)
        torch.autograd.backward(mixed, grad)
        x.grad = None
        core.zero_grad(set_to_none=True)

    return Built(run)
