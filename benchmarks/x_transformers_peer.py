"""The training step of a model of equal size in x-transformers.

Its attention's linear layers and its norms have no biases, pe-lab's have; the matrices are checked
to hold equally many numbers, the encoding's left out. Dropout acts at the same places.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from x_transformers import Decoder, TransformerWrapper

from benchmarks.ours import VOCABULARY, Built, flipflop, parameter_counts, sized, transformer
from pe_lab.models.transformer import TransformerConfig

# Encoding -> keyword arguments of x-transformers' Decoder, from head width, heads and length.
NAMES: dict[str, Callable[[int, int, int], dict[str, Any]]] = {
    "none": lambda width, heads, length: {},
    "alibi": lambda width, heads, length: {"alibi_pos_bias": True, "alibi_num_heads": heads},
    "rope": lambda width, heads, length: {"rotary_pos_emb": True, "rotary_emb_dim": width},
    "t5": lambda width, heads, length: {"rel_pos_bias": True},
    "cope": lambda width, heads, length: {"attn_use_cope": True, "attn_cope_max_pos": length + 1},
}
ENCODINGS = tuple(NAMES)


def peer(cfg: TransformerConfig, encoding: str, vocab_size: int, length: int) -> nn.Module:
    """x-transformers' model with its eager attention."""
    width = cfg.d_model // cfg.n_heads
    decoder = Decoder(
        dim=cfg.d_model,
        depth=cfg.n_layers,
        heads=cfg.n_heads,
        attn_dim_head=width,
        attn_flash=False,
        attn_dropout=cfg.dropout,
        attn_sublayer_dropout=cfg.dropout,
        ff_sublayer_dropout=cfg.dropout,
        ff_mult=cfg.ff_width / cfg.d_model,
        ff_glu=cfg.activation == "swiglu",
        ff_swish=cfg.activation == "swiglu",
        ff_custom_activation=nn.ReLU() if cfg.activation == "relu" else None,
        pre_norm=cfg.norm_position == "pre",
        use_rmsnorm=cfg.norm == "rmsnorm",
        verbose=False,
        **NAMES[encoding](width, cfg.n_heads, length),
    )
    model = TransformerWrapper(
        num_tokens=vocab_size,
        max_seq_len=length,
        attn_layers=decoder,
        use_abs_pos_emb=False,
        emb_dropout=cfg.dropout,
        tie_embedding=cfg.tied_embeddings,
    )
    assert isinstance(model, nn.Module)
    return model


def step(encoding: str, size: str, length: int, batch: int, dropout: float) -> Built:
    """A training step in float32, every place scored, with PyTorch's fused AdamW."""
    config = sized(encoding, size, dropout)
    data = flipflop(length, batch, "all")
    torch.manual_seed(0)
    model = peer(transformer(config), encoding, VOCABULARY, length)
    tokens, targets = torch.from_numpy(data.tokens), torch.from_numpy(data.targets)

    cfg = config.train
    weights = model.parameters()
    keys = {"betas": cfg.betas, "weight_decay": cfg.weight_decay}
    optimizer = torch.optim.AdamW(weights, cfg.lr, **keys, fused=True)
    model.train()

    def run() -> None:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), cfg.clip or torch.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Built(run, parameter_counts(model))
