"""The encodings of the main job against their formulas in loops."""

from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, TRAIN_LEN, Size, agree, attend_by_hooks
from naive import LOGITS, VALUES, attend, plain_value, sinusoid
from variants import SECTIONS, dims, scattered, sequential

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.training.plan import build_encodings

COPE_CHOICES: list[dict[str, Any]] = [
    {},
    {"npos": 3},
    {"npos": 1},
    {"gates": "sep_keys"},
    {"gates": "values"},
    {"combine": "relative"},
    {"combine": "relative", "scale_positions": True},
    {"combine": "rope"},
    {"combine": "rope", "gates": "values", "npos": 3},
    {"combine": "rope", "gates": "sep_keys"},
    {"combine": "alibi_slope"},
    {"combine": "alibi_slope", "npos": 3, "scale_positions": True},
    {"position": "mlp"},
    {"position": "mlp", "npos": 3, "scale_positions": True},
    {"scale_positions": True},
]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("relative", {}),
    ("shaw", {}),
    ("shaw", {"clip": 2}),
    ("shaw", {"clip": 2, "values": False}),
    ("t5", {}),
    ("t5", {"buckets": 5, "max_distance": 9}),
    ("alibi", {}),
    ("alibi", {"learned": True}),
    ("rope", {"base": 10}),
    ("rope", {"pairing": "half"}),
    *(("cope", choice) for choice in COPE_CHOICES),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("name", "choice"), CASES, ids=str)
def test_value_and_gradient(name: str, choice: dict[str, Any], size: Size) -> None:
    filled = {"npos": TRAIN_LEN + 1} if name == "cope" and "npos" not in choice else {}
    naive = partial(attend, logit=LOGITS[name], value=VALUES.get(name, plain_value))
    agree(name, choice, size, naive, keys=filled)


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_sinusoidal(width: int) -> None:
    encoding = build_encodings(
        {**SECTIONS["sinusoidal"], "base": 50}, dims(d_model=width, n_heads=1)
    )[0]
    pos = scattered(2, 6, 40)
    x = torch.randn(2, 6, width)
    expected = torch.tensor([[sinusoid(int(p), width, 50) for p in row] for row in pos])
    got = encoding.embed(x, torch.zeros_like(pos), pos)
    torch.testing.assert_close(got, x + expected, rtol=1e-12, atol=1e-12)


def test_learned() -> None:
    encoding = build_encodings({**SECTIONS["learned"], "max_len": 9}, dims(d_model=4))[0]
    (table,) = encoding.parameters()
    assert table.shape == (9, 4)
    pos = scattered(2, 5, 9)
    x = torch.randn(2, 5, 4)
    expected = torch.stack(
        [torch.stack([x[b, i] + table[int(pos[b, i])] for i in range(5)]) for b in range(2)]
    )
    assert torch.equal(encoding.embed(x, torch.zeros_like(pos), pos), expected)


def cope(sizes: Dims, layer: int, **changes: Any) -> PositionalEncoding:
    return build_encodings({**SECTIONS["cope"], **changes}, sizes)[layer]


def test_cope_starts_as_no_encoding() -> None:
    sizes = dims(d_model=8)
    q, k, v = torch.randn(3, 2, 2, 5, 4).unbind(0)
    x = torch.randn(2, 5, 8)
    none = build_encodings(SECTIONS["none"], sizes)[0]
    expected = attend_by_hooks(none, q, k, v, x, sequential(5))
    for position in ("table", "mlp"):
        got = attend_by_hooks(cope(sizes, 0, position=position), q, k, v, x, sequential(5))
        assert torch.equal(got, expected)


def test_cope_layers_that_do_not_count() -> None:
    sizes = dims(d_model=8, n_layers=4)
    n_parameters = [sum(p.numel() for p in cope(sizes, n, every=2).parameters()) for n in range(4)]
    assert n_parameters == [0, 13 * 4, 0, 13 * 4]
    q, k, v = torch.randn(3, 2, 2, 5, 4).unbind(0)
    x = torch.randn(2, 5, 8)
    for combine in ("relative", "rope"):
        layer = cope(sizes, 0, every=2, combine=combine)
        alone = build_encodings(SECTIONS[combine], sizes)[0]
        if combine == "relative":
            alone.load_state_dict({"table": layer.state_dict()["relative.table"]})
        got = attend_by_hooks(layer, q, k, v, x, sequential(5))
        expected = attend_by_hooks(alone, q, k, v, x, sequential(5))
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
