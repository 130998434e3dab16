"""Functions of one vector, written from their formulas, which the naive models and encodings of the
tests share."""

import math

import torch
from torch import Tensor, nn


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def gru(given: Tensor, kept: Tensor, h: Tensor) -> Tensor:
    """A GRU's next state, of what its input and its state h give to the gates r, z and to n."""
    width = len(h)
    r, z = sigmoid(given[: 2 * width] + kept[: 2 * width]).chunk(2)
    n = (given[2 * width :] + r * kept[2 * width :]).tanh()
    return (1 - z) * n + z * h


def activated(x: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return x.clamp(min=0)
    if activation == "gelu":
        return x * (1 + (x / math.sqrt(2)).erf()) / 2
    if activation == "silu":
        return x * sigmoid(x)
    gate, value = x[: len(x) // 2], x[len(x) // 2 :]
    return gate * sigmoid(gate) * value


def normed(x: Tensor, norm: nn.Module) -> Tensor:
    """The vector after a LayerNorm or RMSNorm with these weights."""
    if isinstance(norm, nn.RMSNorm):
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        return x / (x.square().mean() + eps).sqrt() * norm.weight
    assert isinstance(norm, nn.LayerNorm)
    centred = x - x.mean()
    return centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias


def rotated(
    x: Tensor, position: float, base: float = 10000, pairing: str = "interleaved"
) -> Tensor:
    """Pairs of features rotated by position base^(-2m/D)."""
    width = len(x)
    out = [x[0]] * width
    for m in range(width // 2):
        first, second = (2 * m, 2 * m + 1) if pairing == "interleaved" else (m, m + width // 2)
        angle = position * base ** (-2 * m / width)
        a, b = x[first], x[second]
        out[first] = a * math.cos(angle) - b * math.sin(angle)
        out[second] = a * math.sin(angle) + b * math.cos(angle)
    return torch.stack(out)
