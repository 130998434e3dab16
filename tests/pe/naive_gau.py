"""Gated attention units, one token and one pair of tokens at a time."""

import math
from typing import Any

import torch
from formulas import activated, normed, rotated
from torch import Tensor

from pe_lab.models.gau import GAUConfig


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
