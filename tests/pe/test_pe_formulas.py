"""The encodings of the main job, and separate keys and queries of the distance, against loops."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from agreement import SIZES, TRAIN_LEN, Size, agree, attend_by_hooks
from naive import LOGITS, VALUES, Sight, attend, plain_value, sinusoid
from torch import Tensor
from variants import SECTIONS, dims, move_parameters, scattered, sequential

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


@pytest.mark.parametrize("length", [1, 9])
def test_transformer_xl_as_xlnet(length: int) -> None:
    peer = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    heads, width = 3, 4
    ours: Any = encodings("transformer_xl", {}, d_model=heads * width, n_heads=heads)[0]
    config = peer.XLNetConfig(
        vocab_size=5, d_model=heads * width, n_layer=1, n_head=heads, d_inner=4, dropout=0.0
    )
    theirs = peer.XLNetRelativeAttention(config).double()
    projection = ours.project.weight.T.reshape(-1, heads, width)
    for mine, parameter in (
        (projection, theirs.r),
        (ours.biases["u"][:, 0], theirs.r_w_bias),
        (ours.biases["v"][:, 0], theirs.r_r_bias),
    ):
        parameter.data.copy_(mine)
    q, k, v = torch.randn(3, 2, heads, length, width).unbind(0)
    got = attend_by_hooks(ours, q, k, v, torch.randn(2, length, 12), sequential(length))

    peer_model = peer.XLNetModel(config)
    frequencies = 1 / 10000 ** (torch.arange(0, 12, 2) / 12)
    waves = peer_model.positional_embedding(torch.arange(length, -length, -1.0), frequencies, 2)
    # Their call computes the same in float32.
    single = peer_model.relative_positional_encoding(length, length, bsz=2)
    torch.testing.assert_close(waves, single.double(), rtol=1e-6, atol=1e-6)
    key_of_distance = torch.einsum("ibh,hnd->ibnd", waves, theirs.r)
    ahead = torch.ones(length, length).triu(1)[:, :, None, None]
    expected = theirs.rel_attn_core(
        *(x.permute(2, 0, 1, 3) for x in (q, k, v)), key_of_distance, attn_mask=ahead
    )
    torch.testing.assert_close(got, expected.permute(1, 2, 0, 3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 4, 9])
@pytest.mark.parametrize("clip", [2, 5, 20])
@pytest.mark.parametrize("mirrored", [False, True])
def test_deberta_as_transformers(mirrored: bool, clip: int, length: int) -> None:
    peer = pytest.importorskip("transformers.models.deberta.modeling_deberta")
    heads, width = 3, 4
    choice = {"clip": clip, "mirrored": mirrored, "absolute_layers": 0}
    ours: Any = encodings("deberta", choice, d_model=heads * width, n_heads=heads)[0]
    config = peer.DebertaConfig(
        hidden_size=heads * width,
        num_attention_heads=heads,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=clip,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = peer.DisentangledSelfAttention(config).double()
    theirs.pos_proj.load_state_dict(ours.project_key.state_dict())
    theirs.pos_q_proj.load_state_dict(ours.project_query.state_dict())
    x = torch.randn(2, length, heads * width)
    q, k, v = theirs.transpose_for_scores(theirs.in_proj(x)).chunk(3, -1)
    got = attend_by_hooks(ours, q, k, v, x, sequential(length))
    mask = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
    distance, table = peer.build_relative_position(x, x), ours.relative.weight
    if mirrored:
        # As the formula, not the code, has it: the second term at the distance seen from the key.
        q = q / math.sqrt(3 * width)
        logits = q @ k.mT
        for kind, seen in (("c2p", distance), ("p2c", -distance)):
            theirs.pos_att_type = [kind]
            logits = logits + theirs.disentangled_att_bias(q, k, seen, table, 3)
        weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
        expected = (weights @ v).transpose(1, 2).flatten(-2)
    else:
        expected, _ = theirs(x, mask, relative_pos=distance, rel_embeddings=table)
    # They take the root of 3 D in float32.
    torch.testing.assert_close(got.transpose(1, 2).flatten(-2), expected, rtol=1e-6, atol=1e-6)


def test_deberta_absolute_positions_enter_the_last_layers() -> None:
    built: list[Any] = encodings("deberta", {"absolute_layers": 2, "max_len": 9}, d_model=8)
    assert ["block_input" in encoding.hooks() for encoding in built] == [False, True, True]
    assert [encoding.max_len for encoding in built] == [None, 9, 9]
    assert [encoding.shift_invariant for encoding in built] == [True, False, False]
    assert built[1].absolute is built[2].absolute
    pos = torch.tensor([[0, 3, 8], [1, 2, 5]])
    x = torch.randn(2, 3, 8)
    assert torch.equal(built[0].block_input(x, pos), x)
    table = built[1].absolute.weight
    assert table.shape == (9, 8)
    expected = torch.stack(
        [torch.stack([x[b, i] + table[int(pos[b, i])] for i in range(3)]) for b in range(2)]
    )
    for encoding in built[1:]:
        assert torch.equal(encoding.block_input(x, pos), expected)


def test_what_layers_share() -> None:
    for shared in (True, False):
        built: list[Any] = encodings("transformer_xl", {"share_biases": shared})
        assert len({id(encoding.biases) for encoding in built}) == (1 if shared else 3)
        assert len({id(encoding.project) for encoding in built}) == 3
    built = encodings("deberta", {})
    assert len({id(encoding.relative) for encoding in built}) == 1
    assert len({id(encoding.project_key) for encoding in built}) == 3
    assert len({id(encoding.project_query) for encoding in built}) == 3


def test_deberta_clips_at_the_training_length() -> None:
    (encoding,) = encodings("deberta", {}, n_layers=1, train_len=6)
    assert encoding.relative.weight.shape == (12, 16)  # type: ignore[union-attr]
