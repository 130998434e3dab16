"""The encodings that act at the input, token by token from their formulas."""

from collections.abc import Callable
from typing import Any

import torch
from agreement import MAX_LEN, TRAIN_LEN
from formulas import sigmoid
from torch import Tensor

Tensors = dict[str, Tensor]
Path = Callable[[Tensors, int], Tensor]


def each(x: Tensor, at: Callable[[int, int], Tensor]) -> Tensor:
    """``at(b, s)`` for every token."""
    return torch.stack([torch.stack([at(b, s) for s in range(x.shape[1])]) for b in range(len(x))])


def integer(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
    return each(x, lambda b, s: x[b, s] + int(pos[b, s]) * tensors["weight"])


def normalized(last: int | None) -> Callable[..., Tensor]:
    def naive(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
        def at(b: int, s: int) -> Tensor:
            whole = int(pos[b].max()) if last is None else last
            return x[b, s] + int(pos[b, s]) / whole * tensors["weight"]

        return each(x, at)

    return naive


def binary(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
    def at(b: int, s: int) -> Tensor:
        digits = reversed(format(int(pos[b, s]), "b"))
        return x[b, s] + sum(tensors["weight"][n] for n, digit in enumerate(digits) if digit == "1")

    return each(x, at)


def hierarchical(n: int, a: float) -> Callable[..., Tensor]:
    def naive(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
        p = tensors["table"]

        def u(i: int) -> Tensor:
            return (p[i] - a * p[0]) / (1 - a)

        def at(b: int, s: int) -> Tensor:
            i, j = divmod(int(pos[b, s]), n)
            return x[b, s] + a * u(i) + (1 - a) * u(j)

        return each(x, at)

    return naive


def multiplicative(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
    return each(x, lambda b, s: x[b, s] + x[b, s] * tensors["table"][int(pos[b, s])])


def complex_order(phase: str) -> Callable[..., Tensor]:
    """Amplitude and phase of a token, then the paper's polar form, feature by feature."""

    def naive(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
        half = x.shape[-1] // 2

        def at(b: int, s: int) -> Tensor:
            real, imaginary = [], []
            for j in range(half):
                amplitude, start = x[b, s, j], torch.zeros(())
                if phase == "token":
                    amplitude = (x[b, s, j] ** 2 + x[b, s, half + j] ** 2).sqrt()
                    start = torch.atan2(x[b, s, half + j], x[b, s, j])
                angle = tensors["frequencies"][tokens[b, s], j] * int(pos[b, s]) + start
                real.append(amplitude * angle.cos())
                imaginary.append(amplitude * angle.sin())
            return torch.stack(real + imaginary)

        return each(x, at)

    return naive


def conv(kernel: int) -> Callable[..., Tensor]:
    def naive(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
        def at(b: int, s: int) -> Tensor:
            weight = tensors["conv.weight"][:, 0]
            seen = [weight[:, kernel - 1 - n] * x[b, s - n] for n in range(kernel) if s >= n]
            return x[b, s] + tensors["conv.bias"] + sum(seen)

        return each(x, at)

    return naive


def walked(path: Path) -> Callable[..., Tensor]:
    """x + the state after as many steps as the position says."""

    def naive(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
        return each(x, lambda b, s: x[b, s] + path(tensors, int(pos[b, s])))

    return naive


def gru(tensors: Tensors, steps: int) -> Tensor:
    p, width = tensors["start"], len(tensors["start"])
    w_r, w_z, w_n = tensors["hidden.weight"].split(width)
    b_r, b_z, b_n = tensors["hidden.bias"].split(width)
    for _ in range(steps):
        r, z = sigmoid(w_r @ p + b_r), sigmoid(w_z @ p + b_z)
        n = (tensors["input_bias"] + r * (w_n @ p + b_n)).tanh()
        p = (1 - z) * n + z * p
    return p


def slope(tensors: Tensors, t: float, p: Tensor) -> Tensor:
    w1, w2 = tensors["slope.hidden.weight"], tensors["slope.out.weight"]
    hidden = (w1[:, :-1] @ p + w1[:, -1] * t + tensors["slope.hidden.bias"]).clamp(min=0)
    return w2[:, :-1] @ hidden + w2[:, -1] * t + tensors["slope.out.bias"]


def runge_kutta(delta: float, steps: int) -> Path:
    """The 3/8 rule by its table: nodes, the matrix, weights."""
    nodes, weights = (0, 1 / 3, 2 / 3, 1), (1 / 8, 3 / 8, 3 / 8, 1 / 8)
    matrix = ((), (1 / 3,), (-1 / 3, 1), (1, -1, 1))

    def path(tensors: Tensors, position: int) -> Tensor:
        h, p = delta / steps, tensors["start"]
        for step in range(position * steps):
            k: list[Tensor] = []
            for node, row in zip(nodes, matrix, strict=True):
                moved = sum((a * k_a for a, k_a in zip(row, k, strict=True)), torch.zeros(()))
                k.append(slope(tensors, (step + node) * h, p + h * moved))
            p = p + h * sum(w * k_w for w, k_w in zip(weights, k, strict=True))
        return p

    return path


CASES: list[tuple[str, dict[str, Any], Callable[..., Tensor]]] = [
    ("integer", {}, integer),
    ("normalized", {}, normalized(MAX_LEN - 1)),
    ("normalized", {"max_len": 40}, normalized(39)),
    ("normalized", {"scale": "sequence"}, normalized(None)),
    ("binary", {}, binary),
    ("binary", {"bits": 7}, binary),
    ("hierarchical", {}, hierarchical(TRAIN_LEN, 0.4)),
    ("hierarchical", {"rows": 4, "a": 0.7}, hierarchical(4, 0.7)),
    ("recurrent", {}, walked(gru)),
    ("floater", {}, walked(runge_kutta(0.01, 1))),
    ("floater", {"delta": 0.1, "steps": 3}, walked(runge_kutta(0.1, 3))),
    ("multiplicative", {}, multiplicative),
    ("complex_order", {}, complex_order("token")),
    ("complex_order", {"phase": "zero"}, complex_order("zero")),
    ("conv", {}, conv(3)),
    ("conv", {"kernel": 2}, conv(2)),
    ("conv", {"kernel": 9}, conv(9)),
]
