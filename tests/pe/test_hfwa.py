"""Hybrid window and full attention: windows, and weights against the formula in loops."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from naive import Sight
from rope_by_hand import growth, logit
from torch import Tensor
from variants import SECTIONS, dims, model, scattered

from pe_lab.training.plan import build_encodings


def test_the_window_of_each_layer_of_hfwa() -> None:
    """Through all windows a token knows of at most three quarters of the trained length."""
    for train_len, n_layers in ((512, 24), (128, 2), (64, 4), (12, 3), (3, 2)):
        sizes = {"n_layers": n_layers, "train_len": train_len}
        windows = [e.window for e in build_encodings(SECTIONS["hfwa"], dims(**sizes))]
        w = windows[0]
        assert windows == [w] * (n_layers - 1) + [None]
        assert w is not None
        assert (w - 1) * (n_layers - 1) + 1 <= 3 / 4 * train_len
        assert w * (n_layers - 1) + 1 > 3 / 4 * train_len
    given = build_encodings({**SECTIONS["hfwa"], "window": 5}, dims(n_layers=3))
    assert [e.window for e in given] == [5, 5, None]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("choice", [{}, {"logn": "none", "window": 3}, {"logn": "test"}], ids=str)
def test_weights_of_hfwa(choice: dict[str, Any], cached: bool) -> None:
    keys = {**SECTIONS["hfwa"], **choice}
    built = model(keys, d_model=12, n_heads=2)
    pos = scattered(1, 15, 48)
    window, queries = keys["window"] or 5, 4 if cached else 15
    for training in (True, False):
        built.train(training)
        for number, block in enumerate(built.blocks):
            attention: Any = block.attention
            x = torch.randn(1, 15, 12)
            q, k, inputs = attention.rotate(attention.inputs(x, pos, None, queries), pos, None)
            weights = attention.weights(q, k, inputs)[1]
            s = Sight(inputs.q_BHTD, inputs.k_BHSD, inputs.v_BHSD, x, pos, {}, keys)
            for h, i in itertools.product(range(2), range(queries)):
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


def test_hfwa_leaves_out_the_last_layer_without_logn() -> None:
    encodings = build_encodings({**SECTIONS["hfwa"], "logn": "none"}, dims())
    assert [type(e).__name__ for e in encodings] == ["HFWA", "HFWA", "NoPE"]
