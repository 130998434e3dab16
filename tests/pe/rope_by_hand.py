"""What is done to a trained RoPE, and log n, as formulas in loops."""

import math
from collections.abc import Callable

from agreement import MAX_LEN, TRAIN_LEN
from naive import Sight, turned
from torch import Tensor

K = MAX_LEN / TRAIN_LEN
Angle = Callable[[Sight, int, float, int], float]
"""The angle of the pair m = 1, 2, .. at a distance n in example b."""


def beta(s: Sight) -> float:
    return float(s.keys["base"] ** (2 / s.width))


def k_of(s: Sight) -> float:
    return s.keys["k"] or K


def plain(s: Sight, b: int, n: float, m: int) -> float:
    return n / beta(s) ** (m - 1)


def pi(s: Sight, b: int, n: float, m: int) -> float:
    return plain(s, b, n / k_of(s), m)


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
        return plain(s, b, n, m)
    g = (r - s.keys["slow"]) / (s.keys["fast"] - s.keys["slow"])
    return (1 - g) * pi(s, b, n, m) + g * plain(s, b, n, m)


def dynamic_ntk(s: Sight, b: int, n: float, m: int) -> float:
    last = max(int(p) for p in s.pos[b])
    ratio = max(1, (last + 1) / TRAIN_LEN)
    k = s.keys["k"] or s.keys["factor"] * ratio - (s.keys["factor"] - 1)
    base = s.keys["base"] * k ** (s.width / (s.width - 2))
    return float(n * base ** (-2 * (m - 1) / s.width))


ANGLES: dict[str, Angle] = {
    "rope": plain,
    "pi": pi,
    "ntk_old": ntk_old,
    "ntk_fixed": ntk_fixed,
    "ntk_mixed": ntk_mixed,
    "yarn": yarn,
    "dynamic_ntk": dynamic_ntk,
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
        distance, angle = DISTANCES[name](s, pos_i, pos_j), plain
    else:
        distance, angle = pos_i - pos_j, ANGLES[name]
    angles = [angle(s, b, distance, m) for m in range(1, s.width // 2 + 1)]
    found = turned(s, b, h, i, j, angles)
    if name == "yarn" and s.keys["temperature"]:
        found = found * (0.1 * math.log(k_of(s)) + 1) ** 2
    return found * growth(s, pos_i, training)


def growth(s: Sight, pos: int, training: bool, train_len: int = TRAIN_LEN) -> float:
    """Log n, as ``logn`` has it."""
    logn, clip = s.keys["logn"], s.keys["logn_clip"]
    if logn == "none" or (logn == "test" and training):
        return 1
    factor = math.log(pos + 1) / math.log(train_len)
    return max(1.0, factor) if clip or (logn == "test" and clip is None) else factor
