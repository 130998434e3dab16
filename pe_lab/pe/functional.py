"""What several encodings share: maths of positions, masks, the rotation of pairs of features by
complex numbers, and the refusal of keys that do not fit.

Shape letters as in base.py; R table rows, N taps of a filter.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from pe_lab.core.errors import UsageError


def is_traced(x: Tensor) -> bool:
    """Whether torch.compile, torch.export, torch.func or forward-mode differentiation follows what
    is computed from x: these know PyTorch's own operations alone."""
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
        or forward_ad.unpack_dual(x).tangent is not None
    )


def consecutive(pos_BS: Tensor) -> bool:
    """Whether the positions of every sequence go up by one, so that i - j is that of the places."""
    return bool((pos_BS.diff(dim=-1) == 1).all())


def span(pos_BS: Tensor) -> int:
    """How far apart two positions of a sequence are at most."""
    return read_number((pos_BS.amax(-1) - pos_BS.amin(-1)).max())


def count_up_to(pos_BS: Tensor) -> int:
    """How many positions there are from 0 to the largest."""
    return read_number(pos_BS.max()) + 1 if pos_BS.numel() else 1


def read_number(number: Tensor) -> int:
    """The number in a tensor, on which the size of others depends."""
    if torch.compiler.is_exporting():
        raise UsageError(
            "torch.export cannot follow this encoding, whose tensors grow with the largest "
            "position: use torch.compile, or choose another one"
        )
    return int(number)


def look_up(pos_BS: Tensor, table_RE: Tensor) -> Tensor:
    """The rows of a table at these positions."""
    try:
        return F.embedding(pos_BS, table_RE)
    except IndexError:
        raise IndexError(
            f"positions from {pos_BS.min()} to {pos_BS.max()} are out of range: this encoding has "
            f"0 to {len(table_RE) - 1}"
        ) from None


def first_true(*cases: tuple[bool, str | None]) -> str | None:
    """The sentence of the first case that is true; None if there is no such case."""
    return next((sentence for is_true, sentence in cases if is_true), None)


def refuse_where(*cases: tuple[bool, str], error: type[Exception] = ValueError) -> None:
    """An error with the sentence of the first case that is true: keys that do not fit."""
    if (sentence := first_true(*cases)) is not None:
        raise error(sentence)


def widened(x: Tensor) -> Tensor:
    """x in at least float32: sums and products of many terms lose too much in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def causal_filter(x_BSE: Tensor, filter_NE: Tensor) -> Tensor:
    """Causal depthwise convolution over tokens, zero padded; row n of the filter weighs the token
    N - 1 - n back."""
    n, s = filter_NE.shape[0], x_BSE.shape[1]
    padded = F.pad(x_BSE, (0, 0, n - 1, 0))
    total_BSE = padded[:, :s] * filter_NE[0]
    for m in range(1, n):
        total_BSE = total_BSE.addcmul(padded[:, m : m + s], filter_NE[m])
    return total_BSE


def distances(pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
    """i - j for every query and key, (B, T, S); 0 where the key is ahead (masked anyway)."""
    return (pos_q_BT[:, :, None] - pos_k_BS[:, None, :]).clamp(min=0)


def pick_rows(scores_BHTR: Tensor, row_BTS: Tensor) -> Tensor:
    """scores[.., t, row[t, s]], (B, H, T, S): with scores = q @ table.T, q_i . table[row_ij].

    Scoring every row first costs T * R, where looking up vectors would cost T * S * D.
    """
    b, h, t, _ = scores_BHTR.shape
    return scores_BHTR.gather(-1, row_BTS[:, None].expand(b, h, t, -1))


def frequencies(width: int, base: float) -> Tensor:
    """base^(-2m/width) for the pair m, in float64: an angle of some thousand radians needs it."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def alibi_slopes(n_heads: int) -> list[float]:
    """Press's m_h: 2^(-8h/H), h = 1..H; else those of the power of two below H, and then every
    second one of the power of two above it."""
    below = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    between = [2 ** (-4 * h / below) for h in range(1, 2 * below + 1, 2)]
    return slopes + between[: n_heads - below]


def causal_mask(t: int, s: int, device: torch.device, window: int | None = None) -> Tensor:
    """(t, s), True where a query may see a key; the queries are the last t of s tokens."""
    if t == 1 and window is None:  # decoding: saves time in every layer
        return torch.ones(1, s, dtype=torch.bool, device=device)
    keys = torch.arange(s, device=device)
    queries = keys[s - t :, None]
    return keys <= queries if window is None else (keys <= queries) & (keys > queries - window)


def additive(mask_TS: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask allows, elsewhere so little that softmax is 0: adding it is cheaper than
    filling (B, H, T, S). It is finite, so that a row without a key has no NaN."""
    least = torch.finfo(dtype).min / 2
    return torch.zeros_like(mask_TS, dtype=dtype).masked_fill(~mask_TS, least)


def masked_softmax(logits_BHTS: Tensor, mask_TS: Tensor) -> Tensor:
    """softmax over the keys that the mask allows."""
    return (logits_BHTS + additive(mask_TS, logits_BHTS.dtype)).softmax(-1)


def rotate_pairs(x_BHTD: Tensor, factors: Tensor, halves: bool = False) -> Tensor:
    """Pairs of features, read as complex numbers, times ``factors``; in the type of x, but computed
    at least in float32.

    Args:
        factors: complex, (1 or B, 1 or H, T, D/2).
        halves: pairs are the features m and m + D/2, else 2m and 2m + 1.
    """
    if halves:
        return rotate_halves(x_BHTD, factors.real, factors.imag)
    wide_BHTD = widened(x_BHTD)
    pairs = torch.view_as_complex(wide_BHTD.reshape(*x_BHTD.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors.to(pairs.dtype)).flatten(-2).to(x_BHTD.dtype)


def rotate_queries_and_keys(
    q_BHTD: Tensor, k_BHSD: Tensor, factors_k: Tensor, halves: bool = False
) -> tuple[Tensor, Tensor]:
    """``rotate_pairs`` of both by the factors of the keys, of which the queries are the last."""
    last = factors_k[:, :, -q_BHTD.shape[2] :]
    return rotate_pairs(q_BHTD, last, halves), rotate_pairs(k_BHSD, factors_k, halves)


def rotate_halves(x_BHTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Features m and m + D/2 rotated by the angle with cos[.., m] and sin[.., m]; in the type of x,
    but computed at least in float32."""
    a, b = widened(x_BHTD).chunk(2, -1)
    cos, sin = cos.to(a.dtype), sin.to(a.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x_BHTD.dtype)


def unit_factors(pos_BT: Tensor, frequencies_M: Tensor) -> Tensor:
    """exp(i position frequency), (B, 1, T, M), complex."""
    return unit((pos_BT[..., None] * frequencies_M)[:, None])


def unit(angle: Tensor) -> Tensor:
    """exp(i angle), complex."""
    return torch.polar(torch.ones_like(angle), angle)
