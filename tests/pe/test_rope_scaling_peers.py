"""The scaling rules of RoPE against Hugging Face transformers (`pip install .[peers]`)."""

from typing import Any

import pytest
import torch
from agreement import attend_by_hooks, first_layer
from torch import Tensor
from variants import sequential

TRAIN_LEN = 64
D = 32


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
    embedding = theirs("linear", base, length, factor=length / TRAIN_LEN)
    agree("pi", embedding, length, base=base)


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
