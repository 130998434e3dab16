"""Each encoding against its formula in loops (naive.py), in value and in gradient."""

import copy
import math
from typing import Any

import pytest
import torch
from naive import LOGITS, VALUES, Sight, attend, plain_value, sinusoid
from torch import Tensor
from variants import SECTIONS, dims, move_parameters, scattered, sequential

from pe_lab.build import build_encodings
from pe_lab.pe.base import Dims, PositionalEncoding, Scene

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
# (batch, keys, queries, heads, positions of each sequence its own)
SIZES = [(1, 5, 5, 1, False), (2, 6, 3, 2, True), (2, 3, 3, 3, False)]


def attend_by_hooks(
    encoding: PositionalEncoding, q: Tensor, k: Tensor, v: Tensor, x: Tensor, pos: Tensor
) -> Tensor:
    t, s = q.shape[2], k.shape[2]
    mask = torch.ones(s, s, dtype=torch.bool).tril()[s - t :]
    scene = Scene(x, v, pos[:, s - t :], pos, mask)
    turned_q, turned_k = encoding.rotate(q, k, scene)
    product = turned_q @ turned_k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    logits = encoding.logits(product, turned_q, turned_k, scene)
    bias = encoding.bias(scene.pos_q_BT, pos)
    weights = encoding.weights(logits if bias is None else logits + bias, mask)
    added = encoding.values(weights, scene.pos_q_BT, pos)
    return weights @ v if added is None else weights @ v + added


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("name", "choice"), CASES, ids=str)
def test_value_and_gradient(
    name: str, choice: dict[str, Any], size: tuple[int, int, int, int, bool]
) -> None:
    batch, n_keys, n_queries, heads, own_positions = size
    width = 4
    sizes = dims(d_model=heads * width, n_heads=heads, train_len=5, max_len=16, n_layers=1)
    section = {**SECTIONS[name], **choice}
    torch.manual_seed(0)
    encoding = build_encodings(section, sizes)[0]
    move_parameters(encoding)
    q = torch.randn(batch, heads, n_queries, width) * 1.5
    k, v = (torch.randn(batch, heads, n_keys, width) for _ in range(2))
    x = torch.randn(batch, n_keys, heads * width)
    pos = scattered(batch, n_keys, 16) if own_positions else sequential(n_keys)
    direction = torch.randn(batch, heads, n_queries, width)
    parameters = dict(encoding.named_parameters())
    inputs = [t.requires_grad_() for t in (q, k, v, x)]

    own: dict[str, Tensor] = dict(parameters)
    keys = {key: value for key, value in section.items() if key != "_target_"}
    if name == "cope" and keys["npos"] is None:
        keys["npos"] = sizes.train_len + 1
    sight = Sight(q, k, v, x, pos.expand(batch, -1), own, keys)
    slow = attend(sight, LOGITS[name], VALUES.get(name, plain_value))
    fast = attend_by_hooks(encoding, q, k, v, x, pos)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    leaves = [*inputs, *parameters.values()]
    slow_grads, fast_grads = (
        torch.autograd.grad(out, leaves, direction, materialize_grads=True) for out in (slow, fast)
    )
    torch.testing.assert_close(fast_grads, slow_grads, rtol=1e-10, atol=1e-10)

    single = copy.deepcopy(encoding).float()
    narrow = [t.detach().float().requires_grad_() for t in inputs]
    out = attend_by_hooks(single, *narrow, pos)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), slow, rtol=1e-5, atol=1e-5)
    grads = torch.autograd.grad(
        out, [*narrow, *single.parameters()], direction.float(), materialize_grads=True
    )
    for got, expected in zip(grads, slow_grads, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


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
        section = SECTIONS[combine]
        alone = build_encodings(section, sizes)[0]
        if combine == "relative":
            alone.load_state_dict({"table": layer.state_dict()["relative.table"]})
        got = attend_by_hooks(layer, q, k, v, x, sequential(5))
        expected = attend_by_hooks(alone, q, k, v, x, sequential(5))
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_cope_counts_in_float32_under_half_precision() -> None:
    """A thousand gates of 1/2 make 500; a bfloat16 sum would stop at 128."""
    n = 1000
    section = {**SECTIONS["cope"], "npos": n, "combine": "alibi_slope"}
    sizes = dims(d_model=2, n_heads=1, train_len=n)
    encoding = build_encodings(section, sizes)[0].float()
    q = k = v = torch.zeros(1, 1, n, 2, dtype=torch.bfloat16)
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    pos = sequential(n)
    scene = Scene(torch.zeros(1, n, 2), v, pos, pos, mask)
    logits = encoding.logits(q @ k.transpose(-1, -2), q, k, scene)
    assert logits[0, 0, -1, 0].item() == -(2**-8) * n / 2
