"""The encodings that act at the input, against their formulas, code by others, and bad values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import MAX_LEN, TRAIN_LEN, agree_at_input, first_layer
from formulas import gru
from naive import sinusoid
from torch import Tensor
from variants import SECTIONS, dims, move_parameters, scattered, sequential

from pe_lab.train.encodings import build_encodings

Tensors = dict[str, Tensor]
Path = Callable[[Tensors, int], Tensor]


def each(x: Tensor, at: Callable[[int, int], Tensor]) -> Tensor:
    """``at(b, s)`` for every token."""
    return torch.stack([torch.stack([at(b, s) for s in range(x.shape[1])]) for b in range(len(x))])


def sinusoidal(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
    return each(x, lambda b, s: x[b, s] + torch.tensor(sinusoid(int(pos[b, s]), x.shape[-1], 50)))


def learned(x: Tensor, tokens: Tensor, pos: Tensor, tensors: Tensors) -> Tensor:
    return each(x, lambda b, s: x[b, s] + tensors["table"][int(pos[b, s])])


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


def walked_gru(tensors: Tensors, steps: int) -> Tensor:
    p, u, bias = tensors["start"], tensors["hidden.weight"], tensors["hidden.bias"]
    given = torch.cat((torch.zeros(2 * len(p)), tensors["input_bias"]))
    for _ in range(steps):
        p = gru(given, u @ p + bias, p)
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
    ("sinusoidal", {"base": 50}, sinusoidal),
    ("learned", {}, learned),
    ("integer", {}, integer),
    ("normalized", {}, normalized(MAX_LEN - 1)),
    ("normalized", {"max_len": 40}, normalized(39)),
    ("normalized", {"scale": "sequence"}, normalized(None)),
    ("binary", {}, binary),
    ("binary", {"bits": 7}, binary),
    ("hierarchical", {}, hierarchical(TRAIN_LEN, 0.4)),
    ("hierarchical", {"rows": 4, "a": 0.7}, hierarchical(4, 0.7)),
    ("recurrent", {}, walked(walked_gru)),
    ("floater", {}, walked(runge_kutta(0.01, 1))),
    ("floater", {"delta": 0.1, "steps": 3}, walked(runge_kutta(0.1, 3))),
    ("multiplicative", {}, multiplicative),
    ("complex_order", {}, complex_order("token")),
    ("complex_order", {"phase": "zero"}, complex_order("zero")),
    ("conv", {}, conv(3)),
    ("conv", {"kernel": 2}, conv(2)),
    ("conv", {"kernel": 9}, conv(9)),
]


@pytest.mark.parametrize(("length", "own_positions"), [(7, True), (4, False), (2, True)])
@pytest.mark.parametrize(
    ("name", "choice", "naive"), CASES, ids=[f"{name}-{choice}" for name, choice, _ in CASES]
)
def test_value_and_gradient(
    name: str,
    choice: dict[str, Any],
    naive: Callable[..., Tensor],
    length: int,
    own_positions: bool,
) -> None:
    agree_at_input(name, choice, naive, length=length, own_positions=own_positions)


@pytest.mark.parametrize("name", ["integer", "normalized", "recurrent", "floater", "complex_order"])
def test_half_precision_leaves_positions_exact(name: str) -> None:
    encoding = first_layer(name, {}, d_model=8, max_len=400).float()
    x, tokens = torch.randn(1, 20, 8).float(), torch.randint(0, 11, (1, 20))
    pos = sequential(20, offset=380)
    exact = encoding.embed(x, tokens, pos)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoding.embed(x, tokens, pos), exact)


def vectors(name: str, choice: dict[str, Any], n: int, **sizes: int) -> Tensor:
    """What an added encoding adds at the positions 0 .. n-1, (n, E)."""
    encoding = first_layer(name, choice, **sizes)
    tokens = torch.zeros(1, n, dtype=torch.long)
    return encoding.embed(torch.zeros(1, n, sizes["d_model"]), tokens, sequential(n))[0]


@pytest.mark.parametrize(
    ("name", "choice", "reach"),
    [("binary", {"bits": 5}, 32), ("binary", {"bits": 1}, 2), ("hierarchical", {"rows": 5}, 25)],
)
def test_reach_and_no_further(name: str, choice: dict[str, Any], reach: int) -> None:
    assert first_layer(name, choice).max_len == reach
    assert len(vectors(name, choice, reach, d_model=8).unique(dim=0)) == reach
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        vectors(name, choice, reach + 1, d_model=8)


@pytest.mark.parametrize(
    ("train_len", "max_len", "rows", "bits"),
    [(12, 48, 12, 6), (5, 64, 8, 6), (5, 65, 9, 7), (1, 1, 1, 1), (1, 2, 2, 1)],
)
def test_default_sizes_reach_every_split(
    train_len: int, max_len: int, rows: int, bits: int
) -> None:
    sizes = {"train_len": train_len, "max_len": max_len}
    assert len(first_layer("hierarchical", {}, **sizes).table) == rows
    assert len(first_layer("binary", {}, **sizes).weight) == bits


def test_floater_in_every_block() -> None:
    torch.manual_seed(0)
    section = {**SECTIONS["floater"], "blocks": "all"}
    encodings = build_encodings(section, dims(d_model=6, n_layers=3))
    for encoding in encodings:
        move_parameters(encoding)
        assert encoding.slope is encodings[0].slope
    assert len({encoding.start for encoding in encodings}) == 3
    x, pos = torch.randn(2, 4, 6), scattered(2, 6, 16)
    for encoding in encodings:
        own = dict(encoding.named_parameters())
        expected = walked(runge_kutta(0.01, 1))(x, x, pos[:, 2:], own)
        got = encoding.block_input(x, pos[:, 2:])
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
