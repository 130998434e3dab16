"""Encodings against code by others, where it is installed (pip install .[peers])."""

from typing import Any

import pytest
import torch
from agreement import attend_by_hooks, causal, first_layer
from naive import t5_bucket
from torch import Tensor
from variants import SECTIONS, dims, move_parameters, sequential

from pe_lab.pe.base import AttentionInputs
from pe_lab.train.encodings import build_encodings


def encoding(name: str, sizes: dict[str, int], **changes: Any) -> Any:
    return build_encodings({**SECTIONS[name], **changes}, dims(**sizes))[0]


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (32, 512), (8, 20), (6, 40)])
def test_t5_buckets(buckets: int, most: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    n = 3 * most
    ours = encoding("t5", {"n_heads": 1}, buckets=buckets, max_distance=most)
    ours.table.data[:, 0] = torch.arange(buckets)
    bias = ours.bias(torch.tensor([[n]]), torch.arange(n + 1)[None])
    theirs = t5.T5Attention._relative_position_bucket(
        torch.arange(n + 1) - n, bidirectional=False, num_buckets=buckets, max_distance=most
    )
    assert torch.equal(bias[0, 0, 0].long(), theirs)
    assert [t5_bucket(d, buckets, most) for d in range(n, -1, -1)] == theirs.tolist()


@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12, 16])
def test_alibi_slopes(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    ours = encoding("alibi", {"d_model": 4 * heads, "n_heads": heads}).slopes
    at_one = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    torch.testing.assert_close(ours, at_one, rtol=1e-6, atol=0)


def rotated(pairing: str, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rope = encoding("rope", {"d_model": 16, "n_heads": 2}, pairing=pairing)
    pos = sequential(q.shape[2])
    result: tuple[torch.Tensor, torch.Tensor] = rope.rotate(
        q, k, AttentionInputs(q, q, k, k, pos, pos)
    )
    return result


def test_rope_halves_as_llama() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = torch.randn(2, 3, 2, 7, 8).unbind(0)
    angle = sequential(7)[..., None] * 10000 ** (-torch.arange(0, 8, 2) / 8)
    angle = torch.cat((angle, angle), -1)
    theirs = llama.apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())
    torch.testing.assert_close(rotated("half", q, k), theirs, rtol=1e-12, atol=1e-12)


def test_rope_interleaved_as_gptj() -> None:
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    q, k = torch.randn(2, 3, 2, 7, 8).unbind(0)
    table = gptj.create_sinusoidal_positions(7, 8).double()[None]
    sin, cos = table.chunk(2, -1)
    theirs = tuple(
        gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2) for x in (q, k)
    )
    # Their table is computed in float32.
    torch.testing.assert_close(rotated("interleaved", q, k), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("npos", [3, 9])
def test_cope_as_x_transformers(npos: int) -> None:
    peer = pytest.importorskip("x_transformers.x_transformers")
    torch.manual_seed(0)
    ours = encoding("cope", {"d_model": 16, "n_heads": 2}, npos=npos)
    move_parameters(ours)
    theirs = peer.CoPE(dim=8, heads=2, max_pos=npos)
    theirs.pos_emb.data.copy_(ours.position.table)
    q, k, v = torch.randn(3, 2, 2, 7, 8).unbind(0)
    got = attend_by_hooks(ours, q, k, v, torch.randn(2, 7, 16), sequential(7))
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    logits = (q @ k.mT / 8**0.5).masked_fill(~mask, -torch.finfo(q.dtype).max)
    expected = (logits + theirs(q, logits)).softmax(-1) @ v
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_none_as_pytorch() -> None:
    ours = encoding("none", {"d_model": 16, "n_heads": 2})
    q, k, v = torch.randn(3, 2, 2, 7, 8).unbind(0)
    got = attend_by_hooks(ours, q, k, v, torch.randn(2, 7, 16), sequential(7))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(got, theirs, rtol=1e-12, atol=1e-12)


def test_learned_as_gpt2() -> None:
    gpt2 = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    config = gpt2.GPT2Config(vocab_size=11, n_positions=9, n_embd=8, n_layer=0, n_head=2)
    theirs = gpt2.GPT2Model(config).double().eval()
    ours = encoding("learned", {"d_model": 8}, max_len=9)
    theirs.wpe.weight.data.copy_(ours.table)
    tokens, pos = torch.randint(0, 11, (2, 5)), torch.tensor([[0, 1, 4, 5, 8], [2, 3, 4, 6, 7]])
    expected = theirs(tokens, position_ids=pos).last_hidden_state
    got = theirs.ln_f(ours.embed(theirs.wte(tokens), tokens, pos))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [8, 5])
def test_sinusoidal_as_marian(width: int) -> None:
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    table = marian.MarianSinusoidalPositionalEmbedding(20, width).create_weight().double()
    # Their sines come first and their cosines after them.
    sines = (width + 1) // 2
    theirs = torch.zeros(20, width)
    theirs[:, 0::2], theirs[:, 1::2] = table[:, :sines], table[:, sines:]
    ours = encoding("sinusoidal", {"d_model": width, "n_heads": 1})
    pos = sequential(20)
    got = ours.embed(torch.zeros(1, 20, width), torch.zeros_like(pos), pos)[0]
    # Their table is computed in float32.
    torch.testing.assert_close(got, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "rows"), [("shaw", 4), ("relative", 9)])
def test_rows_of_the_distance_as_wav2vec2_bert(name: str, rows: int) -> None:
    """Its "relative_key" is Shaw's term of the keys; it has none of the values."""
    bert = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
    config = bert.Wav2Vec2BertConfig(
        hidden_size=16,
        num_attention_heads=2,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=rows - 1,
        right_max_position_embeddings=0,
    )
    theirs = bert.Wav2Vec2BertSelfAttention(config).double()
    keys = {"clip": rows - 1, "values": False} if name == "shaw" else {"max_len": rows}
    ours = encoding(name, {"d_model": 16, "n_heads": 2}, **keys)
    table = ours.key_table if name == "shaw" else ours.table
    theirs.distance_embedding.weight.data.copy_(table.flip(0))
    q, k, v = torch.randn(3, 2, 2, 7, 8).unbind(0)
    rotated, bias = bert._apply_relative_key_position_encoding(theirs, q, k)
    expected = causal((rotated @ k.mT) / 8**0.5 + bias, v)
    got = attend_by_hooks(ours, q, k, v, torch.randn(2, 7, 16), sequential(7))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


TRAIN_LEN = 64
D = 32
EACH = {"short": 9, "long": 2}
"""By how much the factors of LongRoPE grow from pair to pair, 1 over this."""


def theirs(rope_type: str, base: float, length: int, **keys: Any) -> Any:
    """Their rotary embedding of a model trained at TRAIN_LEN."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=2 * D,
        num_attention_heads=2,
        max_position_embeddings=length,
        rope_parameters={"rope_type": rope_type, "rope_theta": base, **keys},
    )
    return llama.LlamaRotaryEmbedding(config)


def attended(embedding: Any, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = llama.apply_rotary_pos_emb(q, k, *embedding(v, pos))
    out: Tensor = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out


def agree(name: str, embedding: Any, length: int, **choice: Any) -> None:
    """Frequencies, and attention over a sequence of this length. Theirs are in float32."""
    sizes = {"d_model": 2 * D, "n_heads": 2, "train_len": TRAIN_LEN, "max_len": length}
    ours = first_layer(name, {"pairing": "half", **choice}, **sizes)
    torch.manual_seed(length)
    q, k, v = torch.randn(3, 1, 2, length, D).unbind(0)
    pos = sequential(length)
    expected = attended(embedding, q, k, v, pos)
    one = torch.tensor([[1] + [length - 1] * (length > 1)])
    turn = ours.factors(one)[0, 0, 0]  # type: ignore[operator]
    factor = turn.abs()
    torch.testing.assert_close(turn.angle(), embedding.inv_freq.double(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        factor, torch.full_like(factor, embedding.attention_scaling), rtol=1e-6, atol=0
    )
    got = attend_by_hooks(ours, q, k, v, v.transpose(1, 2).flatten(2), pos)
    # Their angles are products in float32.
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("length", [64, 100, 512])
def test_pi_as_transformers(length: int, base: float) -> None:
    agree("pi", theirs("linear", base, length, factor=length / TRAIN_LEN), length, base=base)


@pytest.mark.parametrize("factor", [1, 2.5])
@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("length", [30, 64, 100, 512])
def test_dynamic_ntk_as_transformers(length: int, base: float, factor: float) -> None:
    embedding = theirs("dynamic", base, TRAIN_LEN, factor=factor)
    agree("dynamic_ntk", embedding, length, base=base, factor=factor)


@pytest.mark.parametrize("given", [{}, {"beta_fast": 4.0, "beta_slow": 0.5}], ids=str)
@pytest.mark.parametrize("base", [10000.0, 50.0])
@pytest.mark.parametrize("length", [64, 100, 512])
def test_yarn_as_transformers(length: int, base: float, given: dict[str, float]) -> None:
    embedding = theirs(
        "yarn",
        base,
        length,
        factor=length / TRAIN_LEN,
        original_max_position_embeddings=TRAIN_LEN,
        **given,
    )
    keys = {"slow": given.get("beta_slow", 1), "fast": given.get("beta_fast", 32)}
    agree("yarn", embedding, length, base=base, ramp="pairs", **keys)


def test_yarn_as_transformers_without_rounding_and_as_llama3() -> None:
    original = {"factor": 8.0, "original_max_position_embeddings": TRAIN_LEN}
    unrounded = theirs("yarn", 500.0, 512, truncate=False, **original)
    agree("yarn", unrounded, 512, base=500.0, ramp="pairs_unrounded")
    llama3 = theirs("llama3", 500.0, 512, low_freq_factor=1.0, high_freq_factor=4.0, **original)
    agree("yarn", llama3, 512, base=500.0, slow=1, fast=4, temperature=False)


@pytest.mark.parametrize("length", [30, 64, 65, 512])
def test_longrope_as_transformers(length: int) -> None:
    factors = {f"{key}_factor": [1 + m / n for m in range(D // 2)] for key, n in EACH.items()}
    lengths = {"factor": 8.0, "original_max_position_embeddings": TRAIN_LEN}
    embedding = theirs("longrope", 500.0, 512, **lengths, **factors)
    ours = {key: factors[f"{key}_factor"] for key in EACH}
    agree("longrope", embedding, length, base=500.0, k=8, **ours)


def test_proportional_as_transformers() -> None:
    embedding = theirs("proportional", 500.0, 100, partial_rotary_factor=0.25, factor=4.0)
    agree("pi", embedding, 100, base=500.0, k=4, fraction=0.25, drop="low")


@pytest.mark.parametrize("length", [100, 512])
def test_yarn_by_rotations_is_another_ramp_than_theirs(length: int) -> None:
    """The paper's: it differs from the code where a pair is neither kept nor interpolated."""
    sizes = {"d_model": 2 * D, "n_heads": 2, "train_len": TRAIN_LEN, "max_len": length}
    keys = {"factor": length / TRAIN_LEN, "original_max_position_embeddings": TRAIN_LEN}
    embedding = theirs("yarn", 10000.0, length, **keys)
    ours = first_layer("yarn", {"pairing": "half"}, **sizes)
    ratio = ours.frequencies / embedding.inv_freq.double()  # type: ignore[operator]
    assert (ratio - 1).abs().max() > 0.1
    assert ours.attention_factor == pytest.approx(embedding.attention_scaling, rel=1e-9)
