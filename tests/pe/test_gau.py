"""Gated attention units: their formula in loops, every encoding in them, and what is refused."""

import math
from typing import Any

import pytest
import torch
from fast import accelerated, plain
from formulas import activated, normed, rotated
from torch import Tensor
from variants import (
    MAX_LEN,
    SECTIONS,
    TRAIN_LEN,
    VARIANTS,
    VOCAB,
    Section,
    move_parameters,
    scattered,
    sequential,
    tokens,
)

from docs import facts
from pe_lab.check import base
from pe_lab.check.networks import compare_with_plain
from pe_lab.core.validation import instantiate
from pe_lab.models.config import Vocabulary
from pe_lab.models.gau import GAUConfig
from pe_lab.models.transformer import Transformer
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.none import NoPE
from pe_lab.train.encodings import build_encodings


def naive_layer(rows: list[Tensor], unit: Any, cfg: GAUConfig, pe: str) -> list[Tensor]:
    core, e, s = unit.attention, cfg.expansion * cfg.d_model, cfg.head_width
    gates, values, queries, keys = [], [], [], []
    for i, x in enumerate(rows):
        seen = normed(x, unit.norm) if cfg.norm_position == "pre" else x
        gates.append(activated(unit.gate.weight @ seen + unit.gate.bias, cfg.activation))
        vz = activated(core.vz.weight @ seen + core.vz.bias, cfg.activation)
        values.append(vz[:e])
        for n, made in enumerate((queries, keys)):
            scaled = core.gamma[n] * vz[e:] + core.beta[n]
            made.append(rotated(scaled, i) if pe == "rope" else scaled)
    out = []
    for i, x in enumerate(rows):
        visible = range(0 if cfg.window is None else max(0, i - cfg.window + 1), i + 1)
        logits = [queries[i] @ keys[j] / math.sqrt(s) for j in visible]
        if pe == "t5":
            logits = [
                a + core.encoding.table[i - j, 0] for a, j in zip(logits, visible, strict=True)
            ]
        if cfg.attention == "softmax":
            weights = [a.exp() / sum(b.exp() for b in logits) for a in logits]
        else:
            weights = [a.clamp(min=0) ** 2 / len(visible) for a in logits]
        mixed = sum(w * values[j] for w, j in zip(weights, visible, strict=True))
        y = x + unit.out.weight @ (gates[i] * mixed) + unit.out.bias
        out.append(y if cfg.norm_position == "pre" else normed(y, unit.norm))
    return out


def naive(built: Any, cfg: GAUConfig, pe: str, sequences: Tensor) -> Tensor:
    read = []
    for sequence in sequences:
        rows = [built.tokens.weight[word] for word in sequence]
        if cfg.tied_embeddings:
            rows = [x * math.sqrt(cfg.d_model) for x in rows]
        for unit in built.blocks:
            rows = naive_layer(rows, unit, cfg, pe)
        if cfg.norm_position == "pre":
            rows = [normed(x, built.norm) for x in rows]
        read.append(torch.stack(rows))
    return torch.stack(read)


SMALL = {"n_layers": 3, "d_model": 16, "head_width": 8}


def config(**keys: Any) -> GAUConfig:
    section = facts.section("gau", "model")
    made: GAUConfig = instantiate({**section, **SMALL, **keys}, "model", GAUConfig)
    return made


def gau(section: Section, seed: int = 0, **keys: Any) -> Transformer:
    """A tiny model in float64, all of whose parameters are moved from where they start."""
    cfg = config(**keys)
    torch.manual_seed(seed)
    encodings = build_encodings(section, cfg.dims(VOCAB, TRAIN_LEN, MAX_LEN))
    built = accelerated(cfg.build(Vocabulary(VOCAB), encodings))
    move_parameters(built)
    return built


FORMULAS: dict[str, dict[str, Any]] = {
    "none": {},
    "rope": {"window": 3, "norm": "rmsnorm", "activation": "relu"},
    "t5": {"norm_position": "post", "tied_embeddings": True, "expansion": 3},
}


@pytest.mark.parametrize("attention", ["softmax", "relu2"])
@pytest.mark.parametrize("pe", FORMULAS)
def test_the_formula_in_loops(pe: str, attention: str) -> None:
    keys = {"n_layers": 2, "d_model": 6, "head_width": 4, "attention": attention, **FORMULAS[pe]}
    built, sequences = gau(SECTIONS[pe], **keys), tokens(2, 7)
    slow = naive(built, config(**keys), pe, sequences)
    fast = built(sequences, sequential(7))
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    slow_grads, fast_grads = (base.gradients(built, out) for out in (slow, fast))
    assert all(g.abs().max() > 0 for g in fast_grads[:-1]), "but for the output layer"
    torch.testing.assert_close(fast_grads, slow_grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["alibi", "cope", "cope-gates=sep_keys", "path", "shaw-values=false"]
)
@pytest.mark.parametrize("head_width", [8, 32])
def test_kernels_equal_the_formulas(name: str, head_width: int) -> None:
    """With values wider than keys, and as wide."""
    built = gau(VARIANTS[name], head_width=head_width)
    places = [sequential(TRAIN_LEN), scattered(2, TRAIN_LEN, MAX_LEN)]
    compare_with_plain(built, plain(built), tokens(2, TRAIN_LEN), places, loose=10)


def test_an_encoding_that_enters_every_layer() -> None:
    class Shift(PositionalEncoding):
        def block_input(self, x_BTE: Tensor, pos_q_BT: Tensor) -> Tensor:
            return x_BTE + pos_q_BT[..., None].sin()

    built, x, pos = gau(SECTIONS["none"]), torch.randn(2, 5, 16), sequential(5, 3)
    for unit in built.blocks:
        plain, _ = unit(x + pos[..., None].sin(), pos)
        unit.attention.encoding = Shift()
        shifted, _ = unit(x, pos)
        torch.testing.assert_close(shifted, plain, rtol=1e-12, atol=1e-12)


def test_initial_weights() -> None:
    cfg = config(n_layers=9)
    built = cfg.build(Vocabulary(VOCAB), [NoPE(cfg.dims(VOCAB, 4, 4))] * 9)
    for unit in built.blocks:
        core: Any = unit.attention
        assert bool((core.gamma == 1).all() and (core.beta == 0).all())
        for linear, share in ((unit.gate, 1.0), (core.vz, 1.0), (unit.out, 1 / 3)):
            limit = share / math.sqrt(linear.in_features)
            assert 0.9 * limit < linear.weight.abs().max() < limit
            assert not linear.bias.any()
