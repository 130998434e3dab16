"""What is measured of ours: attention by itself, and whole training steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from torch import nn

from benchmarks.gauges import Step
from pe_lab.common.dropout import Drop
from pe_lab.common.instantiate import instantiate
from pe_lab.common.rng import generator
from pe_lab.common.task import Batch, Bools
from pe_lab.config.check import check
from pe_lab.config.combined_parts import fill_parts
from pe_lab.config.schema import Config, TrainConfig, register_resolvers
from pe_lab.kernels import dispatch
from pe_lab.kernels.apply import accelerate
from pe_lab.kernels.attention import FastMultiHeadAttention
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.base import Model
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import Dims
from pe_lab.tasks.flipflop import FlipFlop
from pe_lab.training.encodings import build_encodings
from pe_lab.training.loss import summed_loss
from pe_lab.training.optimizer import make_optimizer

SIZES = {
    "tiny": ("model.n_layers=1", "model.n_heads=2", "model.d_model=16"),
    "small": ("model.n_layers=2", "model.n_heads=4", "model.d_model=64"),
    "paper": ("model.n_layers=4", "model.n_heads=4", "model.d_model=256"),
}
P_IGNORE = 0.8
"""As task=flipflop has it: one token in twenty is read, and so scored."""


@dataclass(frozen=True)
class Made:
    """Something to run again and again, and what is to be known of it."""

    step: Step
    facts: dict[str, Any] = field(default_factory=dict)


def composed(*overrides: str) -> Config:
    """The configuration that pe-lab would run with these overrides."""
    register_resolvers()
    with initialize_config_module("pe_lab.conf", version_base="1.3"):
        cfg = compose("config", list(overrides), return_hydra_config=True)
        sources = cfg.hydra.runtime.config_sources
        ours = {str(k): v for k, v in cfg.items_ex(resolve=False) if k != "hydra"}
        resolved = OmegaConf.to_container(fill_parts(OmegaConf.create(ours), sources), resolve=True)
    assert isinstance(resolved, dict)
    return check({str(key): value for key, value in resolved.items()}, {})


def sized(encoding: str, size: str, dropout: float, *overrides: str) -> Config:
    return composed(f"pe={encoding}", *SIZES[size], f"model.dropout={dropout}", *overrides)


def transformer(config: Config) -> TransformerConfig:
    """The sizes of its model."""
    made: TransformerConfig = instantiate(config.model, "model", TransformerConfig)
    return made


def dims(cfg: TransformerConfig, vocab_size: int, length: int) -> Dims:
    return cfg.dims(vocab_size, length, length)


def flipflop(length: int, batch: int, counted: str) -> tuple[Batch, int]:
    """Flip-flop sequences cut to a length of any parity, and the size of the vocabulary.

    Args:
        counted: ``all`` places are scored, or those that the task scores (``reads``).
    """
    task = FlipFlop(length=2 * (length // 2) + 2, p_ignore=P_IGNORE, splits={})
    whole = task.sample(generator(0, "benchmark"), batch)
    cut = [part[:, :length] for part in (whole.tokens, whole.targets, whole.scored)]
    scored = np.ones_like(cut[2]) if counted == "all" else cut[2]
    return Batch(cut[0], cut[1], scored), len(task.vocab)


def our_stepper(cfg: TrainConfig, model: Model) -> Callable[[Batch, Bools], None]:
    """A whole training step on a batch, given the places that count."""
    optimizer = make_optimizer(cfg, model.parameters())
    model.train()

    def step(batch: Batch, counted: Bools) -> None:
        pos = torch.arange(batch.tokens.shape[1])[None]
        with torch.autocast("cpu", torch.bfloat16, enabled=cfg.precision == "bfloat16"):
            loss = summed_loss(model, batch, counted, pos)
        torch.autograd.backward(loss / int(counted.sum()))
        optimizer.clip(cfg.clip)
        optimizer.step(cfg.lr)
        optimizer.zero_grad()

    return step


def numbers(model: nn.Module) -> dict[str, int]:
    """Parameters in all, and those in the trunk's matrices (an encoding's tables left out)."""
    known = dict(model.named_parameters())
    own = ("encoding", "rel_pos", "cope")
    trunk = [p for name, p in known.items() if p.dim() >= 2 and not any(o in name for o in own)]
    return {
        "parameters": sum(p.numel() for p in known.values()),
        "trunk": sum(p.numel() for p in trunk),
    }


def step(
    encoding: str, size: str, length: int, batch: int, dropout: float, counted: str, also: list[str]
) -> Made:
    """A training step: forward, cross-entropy, backward, clipping, fused AdamW."""
    config = sized(encoding, size, dropout, *also)
    data, vocab_size = flipflop(length, batch, counted)
    torch.manual_seed(0)
    cfg = transformer(config)
    encodings = build_encodings(config.pe, dims(cfg, vocab_size, length))
    model = Transformer(cfg, vocab_size, encodings)
    if config.train.fast:
        accelerate(model)
    run = our_stepper(config.train, model)
    known = {**numbers(model), "scored": float(data.scored.mean()), **backends_used()}
    return Made(lambda: run(data, data.scored), known)


def attention(
    encoding: str, size: str, length: int, batch: int, dropout: float, also: list[str]
) -> Made:
    """Attention forward and backward by itself, from queries, keys and values that stand side by
    side, as the linear layer leaves them."""
    config = sized(encoding, size, dropout, *also)
    cfg = transformer(config)
    torch.manual_seed(0)
    (layer, *_) = build_encodings(config.pe, dims(cfg, 1, length))
    core = MultiHeadAttention(cfg, layer)
    if config.train.fast:
        core.__class__ = FastMultiHeadAttention
        core.choose_kernel()  # type: ignore[operator]
    core.qkv = core.out = nn.Identity()  # type: ignore[assignment]
    x = torch.randn(batch, length, 3 * cfg.d_model, requires_grad=True)
    back = torch.randn(batch, length, cfg.d_model)
    pos = torch.arange(length)[None]

    def run() -> None:
        # A key drawn at every step, as a run has it.
        drop = Drop(dropout, int(torch.randint(2**62, ()))) if dropout else None
        mixed, _ = core(x, pos, None, None, drop)
        torch.autograd.backward(mixed, back)
        x.grad = None
        core.zero_grad(set_to_none=True)

    return Made(run, backends_used())


def backends_used() -> dict[str, Any]:
    """The fused kernels that serve here."""
    return {"backends": dispatch.backend_names(torch.device("cpu"))}
