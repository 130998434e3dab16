"""The encodings of the main job, and separate keys and queries of the distance, against loops."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, TRAIN_LEN, Size, agree, attend_by_hooks
from naive import LOGITS, VALUES, Sight, attend, plain_value
from torch import Tensor
from variants import SECTIONS, dims, move_parameters, sequential

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.train.encodings import build_encodings

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


def cope(sizes: Dims, layer: int, **changes: Any) -> PositionalEncoding:
    return build_encodings({**SECTIONS["cope"], **changes}, sizes)[layer]


def test_cope_layers_that_do_not_count() -> None:
    sizes = dims(d_model=8, n_layers=4)
    n_parameters = [sum(p.numel() for p in cope(sizes, n, every=2).parameters()) for n in range(4)]
    assert n_parameters == [0, 13 * 4, 0, 13 * 4]
    q, k, v = torch.randn(3, 2, 2, 5, 4).unbind(0)
    given = q, k, v, torch.randn(2, 5, 8), sequential(5)
    layer = cope(sizes, 0, every=2, combine="relative")
    alone = build_encodings(SECTIONS["relative"], sizes)[0]
    alone.load_state_dict({"table": layer.state_dict()["relative.table"]})
    same = attend_by_hooks(layer, *given), attend_by_hooks(alone, *given)
    torch.testing.assert_close(*same, rtol=1e-12, atol=1e-12)


def encodings(name: str, choice: dict[str, Any], **sizes: int) -> list[PositionalEncoding]:
    torch.manual_seed(0)
    built = build_encodings({**SECTIONS[name], **choice}, dims(**sizes))
    for encoding in built:
        move_parameters(encoding)
    return built


def of_head(s: Sight, h: int, vector: Tensor) -> Tensor:
    return vector[h * s.width : (h + 1) * s.width]


def transformer_xl(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    width = s.x.shape[-1]
    angles = [
        s.distance(b, i, j) / s.keys["base"] ** (2 * m / width) for m in range((width + 1) // 2)
    ]
    waves = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    r = of_head(s, h, s.own["project.weight"] @ torch.tensor(waves[:width]))
    q, k, u, v = s.q[b, h, i], s.k[b, h, j], s.own["biases.u"][h, 0], s.own["biases.v"][h, 0]
    return (q @ k + q @ r + u @ k + v @ r) / math.sqrt(s.width)


def deberta(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    """Rows as the paper's delta gives them: i - j + c, cut to 0 .. 2c - 1."""
    c, distance = s.keys["clip"], s.distance(b, i, j)
    distances = (distance, -distance if s.keys["mirrored"] else distance)
    to, back = (min(max(d + c, 0), 2 * c - 1) for d in distances)
    table = s.own["relative.weight"]
    key = of_head(s, h, s.own["project_key.weight"] @ table[to])
    query = s.own["project_query.weight"] @ table[back] + s.own["project_query.bias"]
    q, k = s.q[b, h, i], s.k[b, h, j]
    return (q @ k + q @ key + k @ of_head(s, h, query)) / math.sqrt(3 * s.width)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize("choice", [{}, {"base": 7}, {"share_biases": False}], ids=str)
def test_transformer_xl(choice: dict[str, Any], width: int, size: Size) -> None:
    naive = partial(attend, logit=transformer_xl, value=plain_value)
    agree("transformer_xl", choice, size, naive, width=width)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"absolute_layers": 0},
        {"clip": 1},
        {"clip": 2},
        {"clip": 30},
        {"clip": 3, "mirrored": False},
    ],
    ids=str,
)
def test_deberta(choice: dict[str, Any], size: Size) -> None:
    naive = partial(attend, logit=deberta, value=plain_value)
    agree("deberta", choice, size, naive, keys={"clip": choice.get("clip", TRAIN_LEN)})


def test_deberta_absolute_positions_enter_the_last_layers() -> None:
    built: list[Any] = encodings("deberta", {"absolute_layers": 2, "max_len": 9}, d_model=8)
    assert ["block_input" in encoding.hooks() for encoding in built] == [False, True, True]
    assert [encoding.max_len for encoding in built] == [None, 9, 9]
    assert [encoding.shift_invariant for encoding in built] == [True, False, False]
    assert built[1].absolute is built[2].absolute
    pos = torch.tensor([[0, 3, 8]])
    x = torch.randn(1, 3, 8)
    assert torch.equal(built[0].block_input(x, pos), x)
    expected = [x[0, i] + built[1].absolute.weight[p] for i, p in enumerate((0, 3, 8))]
    for encoding in built[1:]:
        assert torch.equal(encoding.block_input(x, pos), torch.stack(expected)[None])


def test_what_layers_share() -> None:
    for shared in (True, False):
        built: list[Any] = encodings("transformer_xl", {"share_biases": shared})
        assert len({id(encoding.biases) for encoding in built}) == (1 if shared else 3)
        assert len({id(encoding.project) for encoding in built}) == 3
    built = encodings("deberta", {})
    assert len({id(encoding.relative) for encoding in built}) == 1
    assert len({id(encoding.project_key) for encoding in built}) == 3
