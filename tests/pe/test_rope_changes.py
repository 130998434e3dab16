"""What is done to a trained RoPE, and log n, against their formulas in loops."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from agreement import MAX_LEN, SIZES, TRAIN_LEN, Size, agree, attend_by_hooks, first_layer
from naive import Sight, attend, plain_value, turned
from torch import Tensor
from variants import SECTIONS, dims, model, scattered

from pe_lab.train.encodings import build_encodings

K = MAX_LEN / TRAIN_LEN
Angle = Callable[[Sight, int, float, int], float]
"""The angle of the pair m = 1, 2, .. at a distance n in example b."""


def beta(s: Sight) -> float:
    return float(s.keys["base"] ** (2 / s.width))


def k_of(s: Sight) -> float:
    return s.keys["k"] or K


def unscaled(s: Sight, b: int, n: float, m: int) -> float:
    return n / beta(s) ** (m - 1)


def pi(s: Sight, b: int, n: float, m: int) -> float:
    if s.keys.get("drop") == "low" and m > s.keys["fraction"] * s.width / 2:
        return 0
    return unscaled(s, b, n / k_of(s), m)


def longrope(s: Sight, b: int, n: float, m: int) -> float:
    pairs = round(s.keys["fraction"] * s.width / 2)
    if m > pairs:
        return 0
    longer = max(int(p) for p in s.pos[b]) + 1 > TRAIN_LEN
    found, otherwise = (s.keys["long"], k_of(s)) if longer else (s.keys["short"], 1)
    frequency = s.keys["base"] ** (-(m - 1) / pairs)
    return float(n * frequency / (otherwise if found is None else found[m - 1]))


def ntk_old(s: Sight, b: int, n: float, m: int) -> float:
    power = s.width / (s.width - 2) if s.keys["variant"] == 9675 else 1
    base = s.keys["base"] * k_of(s) ** power
    return n / (base ** (2 / s.width)) ** (m - 1)


def ntk_fixed(s: Sight, b: int, n: float, m: int) -> float:
    lam = k_of(s) ** (2 / s.width)
    return n / (lam * (beta(s) * lam) ** (m - 1))


def ntk_mixed(s: Sight, b: int, n: float, m: int) -> float:
    a = math.log(k_of(s)) / (s.width / 2) ** s.keys["b"]
    return n / (beta(s) ** (m - 1) * math.exp(a * m ** s.keys["b"]))


def yarn(s: Sight, b: int, n: float, m: int) -> float:
    wavelength = 2 * math.pi * beta(s) ** (m - 1)
    r = TRAIN_LEN / wavelength
    if r < s.keys["slow"]:
        return pi(s, b, n, m)
    if r > s.keys["fast"]:
        return unscaled(s, b, n, m)
    g = (r - s.keys["slow"]) / (s.keys["fast"] - s.keys["slow"])
    return (1 - g) * pi(s, b, n, m) + g * unscaled(s, b, n, m)


def dynamic_ntk(s: Sight, b: int, n: float, m: int) -> float:
    last = max(int(p) for p in s.pos[b])
    ratio = max(1, (last + 1) / TRAIN_LEN)
    k = s.keys["k"] or s.keys["factor"] * ratio - (s.keys["factor"] - 1)
    base = s.keys["base"] * k ** (s.width / (s.width - 2))
    return float(n * base ** (-2 * (m - 1) / s.width))


ANGLES: dict[str, Angle] = {
    "rope": unscaled,
    "pi": pi,
    "ntk_old": ntk_old,
    "ntk_fixed": ntk_fixed,
    "ntk_mixed": ntk_mixed,
    "yarn": yarn,
    "dynamic_ntk": dynamic_ntk,
    "longrope": longrope,
}


def rerope(s: Sight, i: int, j: int) -> float:
    return min(i - j, s.keys["window"] or TRAIN_LEN // 2)


def leaky_rerope(s: Sight, i: int, j: int) -> float:
    w = s.keys["window"] or TRAIN_LEN // 2
    return i - j if i - j < w else w + (i - j - w) / k_of(s)


def self_extend(s: Sight, i: int, j: int) -> float:
    w = s.keys["window"] or max(1, TRAIN_LEN // 4)
    group = s.keys["group"] or smallest_group(w)
    shift = w - (w // group if s.keys["shift"] == "floored" else w / group)
    return i - j if i - j < w else (i // group + shift) - j // group


def smallest_group(w: int) -> int:
    """By trying: the first that reaches."""
    return next(g for g in range(1, 100) if (TRAIN_LEN - w) * g + w >= MAX_LEN)


DISTANCES = {"rerope": rerope, "leaky_rerope": leaky_rerope, "self_extend": self_extend}


def logit(s: Sight, b: int, h: int, i: int, j: int, name: str, training: bool = True) -> Tensor:
    """By the distance alone: a rotation for each query and key."""
    pos_i, pos_j = int(s.pos[b, s.key_of(i)]), int(s.pos[b, j])
    if name in DISTANCES:
        distance, angle = DISTANCES[name](s, pos_i, pos_j), unscaled
    else:
        distance, angle = pos_i - pos_j, ANGLES[name]
    angles = [angle(s, b, distance, m) for m in range(1, s.width // 2 + 1)]
    found = turned(s, b, h, i, j, angles)
    if name == "yarn" and s.keys["temperature"]:
        found = found * (0.1 * math.log(k_of(s)) + 1) ** 2
    if name == "longrope":
        squared = 1 + math.log(k_of(s)) / math.log(TRAIN_LEN)
        if s.keys["attention_factor"]:
            squared = s.keys["attention_factor"] ** 2
        rotating = turned(s, b, h, i, j, angles[: round(s.keys["fraction"] * s.width / 2)])
        found = found + (squared - 1) * rotating
    return found * growth(s, pos_i, training)


def growth(s: Sight, pos: int, training: bool, train_len: int = TRAIN_LEN) -> float:
    """Log n, as ``logn`` has it."""
    logn, clip = s.keys["logn"], s.keys["logn_clip"]
    if logn == "none" or (logn == "test" and training):
        return 1
    factor = math.log(pos + 1) / math.log(train_len)
    return max(1.0, factor) if clip or (logn == "test" and clip is None) else factor


CASES: list[tuple[str, dict[str, Any]]] = [
    ("rope", {"logn": "train", "base": 10}),
    ("rope", {"logn": "train", "logn_clip": True, "pairing": "half"}),
    ("pi", {}),
    ("pi", {"k": 7, "base": 10, "pairing": "half", "logn": "train"}),
    ("ntk_old", {}),
    ("ntk_old", {"variant": 9706, "base": 10}),
    ("ntk_old", {"k": 7, "logn": "train", "logn_clip": True}),
    ("ntk_fixed", {"base": 10}),
    ("ntk_fixed", {"k": 1.5, "pairing": "half", "logn": "train"}),
    ("ntk_mixed", {"base": 10}),
    ("ntk_mixed", {"k": 7, "b": 0.3, "pairing": "half", "logn": "train"}),
    ("yarn", {}),
    ("yarn", {"base": 2, "slow": 0.5, "fast": 0.7}),
    ("yarn", {"base": 3, "slow": 0.3, "fast": 0.9, "temperature": False, "k": 7, "logn": "train"}),
    ("dynamic_ntk", {"base": 10}),
    ("dynamic_ntk", {"base": 10, "factor": 3, "pairing": "half", "logn": "train"}),
    ("dynamic_ntk", {"base": 10, "k": 7}),
    ("pi", {"base": 10, "fraction": 2 / 3, "drop": "low"}),
    ("yarn", {"base": 3, "slow": 0.3, "fast": 1.2, "temperature": False, "k": 8}),
    ("longrope", {"base": 10}),
    ("longrope", {"base": 10, "short": [1, 2, 3], "long": [4, 9, 7.5], "pairing": "half"}),
    ("longrope", {"base": 10, "short": [2.5, 3, 9], "long": [2.5, 3, 9], "k": 7, "logn": "train"}),
    ("longrope", {"base": 9, "fraction": 2 / 3, "long": [4, 9], "attention_factor": 1.3}),
    ("rerope", {"base": 10}),
    ("rerope", {"base": 10, "window": 4, "pairing": "half", "logn": "train"}),
    ("rerope", {"window": 1, "logn": "train", "logn_clip": False}),
    ("leaky_rerope", {"base": 10}),
    ("leaky_rerope", {"base": 10, "window": 4, "k": 7, "pairing": "half", "logn": "train"}),
    ("self_extend", {"base": 10}),
    ("self_extend", {"base": 10, "window": 3, "pairing": "half", "logn": "train"}),
    ("self_extend", {"base": 10, "window": 5, "group": 3}),
    ("self_extend", {"base": 10, "window": 5, "group": 3, "shift": "exact"}),
]


EVERY_SIZE = {"rope", "pi", "dynamic_ntk", "longrope", *DISTANCES}


@pytest.mark.parametrize(
    ("name", "choice", "size"),
    [
        (name, choice, size)
        for name, choice in CASES
        for size in (SIZES if name in EVERY_SIZE and len(choice) < 2 else SIZES[1:2])
    ],
    ids=str,
)
def test_value_and_gradient(name: str, choice: dict[str, Any], size: Size) -> None:
    naive = partial(attend, logit=partial(logit, name=name), value=plain_value)
    agree(name, choice, size, naive, width=6)


@pytest.mark.parametrize("name", [*ANGLES, *DISTANCES])
@pytest.mark.parametrize("clip", [None, True, False])
@pytest.mark.parametrize("logn", ["train", "test"])
def test_logn_in_training_and_in_evaluation(name: str, logn: str, clip: bool | None) -> None:
    sizes = {"d_model": 6, "n_heads": 1, "train_len": TRAIN_LEN, "max_len": MAX_LEN}
    encoding = first_layer(name, {"logn": logn, "logn_clip": clip}, **sizes)
    q, k, v = torch.randn(3, 1, 1, 9, 6).unbind(0)
    pos, known = scattered(1, 9, MAX_LEN), {**SECTIONS[name], "logn": logn, "logn_clip": clip}
    for training in (True, False):
        by_hand = partial(logit, name=name, training=training)
        slow = attend(Sight(q, k, v, v[:, 0], pos, {}, known), by_hand, plain_value)
        got = attend_by_hooks(encoding.train(training), q, k, v, v[:, 0], pos)
        torch.testing.assert_close(got, slow, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("train_len", "max_len", "window", "group"),
    [
        (512, 512, None, 1),
        (512, 100, 511, 1),
        (12, 48, 3, 5),
        (4096, 16384, None, 5),
        (4096, 16385, 1024, 6),
        (64, 256, 63, 193),
        (64, 256, 256, 1),
    ],
)
def test_self_extend_takes_the_smallest_group(
    train_len: int, max_len: int, window: int | None, group: int
) -> None:
    sizes = {"train_len": train_len, "max_len": max_len}
    assert first_layer("self_extend", {"window": window}, **sizes).group == group


def test_the_window_of_each_layer_of_hfwa() -> None:
    """Through all windows a token knows of at most three quarters of the trained length."""
    for train_len, n_layers in ((512, 24), (128, 2), (64, 4), (12, 3), (3, 2)):
        sizes = {"n_layers": n_layers, "train_len": train_len}
        windows = [e.window for e in build_encodings(SECTIONS["hfwa"], dims(**sizes))]
        w = windows[0]
        assert windows == [w] * (n_layers - 1) + [None]
        assert (w - 1) * (n_layers - 1) + 1 <= 3 / 4 * train_len
        assert w * (n_layers - 1) + 1 > 3 / 4 * train_len


@pytest.mark.parametrize("choice", [{}, {"logn": "none", "window": 3}, {"logn": "test"}], ids=str)
def test_weights_of_hfwa(choice: dict[str, Any]) -> None:
    keys = {**SECTIONS["hfwa"], **choice}
    built = model(keys, d_model=12, n_heads=2)
    pos = scattered(1, 15, 48)
    window = keys["window"] or 5
    for training in (True, False):
        built.train(training)
        for number, block in enumerate(built.blocks):
            attention: Any = block.attention
            x = torch.randn(1, 15, 12)
            inputs = attention.inputs(x, pos, None)
            q, k = attention.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
            weights = attention.weights(q, k, inputs)[1]
            s = Sight(inputs.q_BHTD, inputs.k_BHSD, inputs.v_BHSD, x, pos, {}, keys)
            for h, i in itertools.product(range(2), range(15)):
                here = s.key_of(i)
                first = max(0, here - window + 1) if number < 2 else 0
                exps = torch.zeros(15)
                for j in range(first, here + 1):
                    exps[j] = hfwa(s, h, i, j, number == 2, training).exp()
                expected = exps / exps.sum()
                torch.testing.assert_close(weights[0, h, i], expected, rtol=1e-10, atol=1e-12)


def hfwa(s: Sight, h: int, i: int, j: int, last: bool, training: bool) -> Tensor:
    if not last:
        return logit(replace(s, keys={**s.keys, "logn": "none"}), 0, h, i, j, "rope")
    product = s.q[0, h, i] @ s.k[0, h, j] / math.sqrt(s.width)
    return product * growth(s, int(s.pos[0, s.key_of(i)]), training, 12)
