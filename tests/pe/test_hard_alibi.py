"""Windows of a few tokens in some heads, against loops that leave the other keys out."""

from typing import Any

import pytest
import torch
from agreement import SIZES, Size, agree
from naive import Sight, content, every_query, plain_value
from torch import Tensor
from variants import SECTIONS, dims, sequential

from pe_lab.training.plan import build_encodings


def windowed(s: Sight) -> Tensor:
    """Softmax over the keys in the window alone."""
    heads = s.keys["heads"] or max(1, s.n_heads // 2)

    def at(b: int, h: int, i: int) -> Tensor:
        seen = [
            j for j in range(s.key_of(i) + 1) if h >= heads or s.distance(b, i, j) < h + 1
        ]  # itself at least
        exps = [content(s, b, h, i, j).exp() for j in seen]
        total = sum(exps)
        values = [plain_value(s, b, h, i, j) for j in seen]
        return sum(e / total * value for e, value in zip(exps, values, strict=True))

    return every_query(s, at)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", [{}, {"heads": 1}, {"heads": 2}], ids=str)
def test_value_and_gradient(choice: dict[str, Any], size: Size) -> None:
    if choice.get("heads", 1) <= size[3]:
        agree("hard_alibi", choice, size, windowed)


def test_weights_outside_of_a_window_are_zero_in_every_precision() -> None:
    section = {**SECTIONS["hard_alibi"], "heads": 3}
    (encoding,) = build_encodings(section, dims(d_model=32, n_heads=4, n_layers=1))
    bias = encoding.bias(sequential(12), sequential(12))
    assert bias is not None
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = torch.randn(1, 4, 12, 12).to(dtype) * 100 + bias.to(dtype)
        weights = encoding.normalize(logits, torch.ones(12, 12, dtype=torch.bool).tril())
        counts = (weights[0, :, 11] > 0).sum(-1).tolist()
        seen = [[j for j in range(12) if bias[0, h, 11, j] == 0] for h in range(4)]
        assert seen == [[11], [10, 11], [9, 10, 11], list(range(12))]
        assert all(count <= len(keys) for count, keys in zip(counts, seen, strict=True))
