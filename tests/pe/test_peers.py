"""Encodings against code by others, where it is installed (pip install .[peers])."""

from typing import Any

import pytest
import torch
from agreement import attend_by_hooks, first_layer
from naive import t5_bucket
from torch import Tensor
from variants import SECTIONS, dims, sequential

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
