"""How many floating-point operations the maths of a step asks for, and products of its shapes.

A multiplication and an addition are two operations. The backward pass of a product is two products
of the same size. Attention is causal: of the L^2 pairs, L (L + 1) / 2 count. What an implementation
does twice (recomputation) or needlessly (masked pairs) is not counted, neither are softmax, norms,
dropout, the optimiser and the output layer over the few words of a task.
"""

import torch

from benchmarks.ours import Made, sized, transformer
from pe_lab.models.transformer import TransformerConfig

TABLED = ("cope", "relative", "transformer_xl")
"""Encodings that multiply every query with a table of rows, as many as it sees keys."""


def linear(cfg: TransformerConfig, tokens: int) -> int:
    """Of the linear layers of a training step."""
    return 6 * tokens * cfg.n_layers * sum(n * m for n, m in _matrices(cfg))


def attention(cfg: TransformerConfig, encoding: str, length: int, batch: int) -> int:
    """Of attention in all layers: q k^T, weights v, and q e of an encoding with a table."""
    products = 3 if encoding in TABLED else 2
    pairs = batch * length * (length + 1) // 2
    return cfg.n_layers * products * 3 * 2 * pairs * cfg.d_model


def products(size: str, length: int, batch: int, half: bool = False) -> Made:
    """The products of a step's linear layers alone, forward and backward: the machine's limit in
    these shapes. ``half``: in bfloat16."""
    cfg = transformer(sized("none", size, 0))
    kind = torch.bfloat16 if half else torch.float32
    tokens = length * batch
    weights = [torch.randn(m, n, dtype=kind) for n, m in _matrices(cfg)]
    inputs = [torch.randn(tokens, n, dtype=kind) for n, _ in _matrices(cfg)]
    grads = [torch.randn(tokens, m, dtype=kind) for _, m in _matrices(cfg)]

    def run() -> None:
        for _ in range(cfg.n_layers):
            for w, x, g in zip(weights, inputs, grads, strict=True):
                torch.mm(x, w.T)
                torch.mm(g, w)
                torch.mm(g.T, x)

    return Made(run, {"flop": linear(cfg, tokens)})


def product(rows: int, inner: int, columns: int, batch: int = 1, half: bool = False) -> Made:
    """One (batched) product."""
    kind = torch.bfloat16 if half else torch.float32
    a, b = (torch.randn(batch, *shape, dtype=kind) for shape in ((rows, inner), (inner, columns)))

    def run() -> None:
        torch.bmm(a, b)

    return Made(run, {"flop": 2 * batch * rows * inner * columns})


def _matrices(cfg: TransformerConfig) -> list[tuple[int, int]]:
    """(from, to) of each linear layer of a block."""
    d, ff = cfg.d_model, cfg.ff_width
    gates = 2 if cfg.activation == "swiglu" else 1
    return [(d, 3 * d), (d, d), (d, gates * ff), (ff, d)]
