"""``pe-lab check hf=config.json``: whether our rotation equals that of transformers."""

import importlib
import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pe_lab.check.base import ContractError, NotClaimedError, Outcome, outcome, require
from pe_lab.config.hf_config import LENGTHS, encoding_of, read, rope_length
from pe_lab.core.errors import UsageError, reason
from pe_lab.nn import with_defaults
from pe_lab.pe.base import AttentionInputs, Dims
from pe_lab.pe.rope import RoPE

NEAR = 1e-5
"""Theirs are computed in float32."""
TOKENS = 16


def check_rotation(file: str) -> Iterator[Outcome]:
    """Frequencies, attention factor and rotated logits of the model that a config.json describes.

    Raises:
        UsageError: the file, the model or its rotation is not known.
    """
    name, keys = encoding_of(file, "hf")
    config, embedding, rotate = theirs(file)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    saved = read(file, "hf")
    saved = {**saved, **(saved.get("text_config") or {})}
    length = next(filter(None, (rope_length(saved, key) for key in LENGTHS)), 0)
    length = length or config.max_position_embeddings
    dims = Dims(config.hidden_size, heads, 1, 1, length, length, head_width=width)
    (ours,) = with_defaults(name, dims, keys)
    assert isinstance(ours, RoPE)
    for title, tokens in (("trained length", length), ("twice the trained length", 2 * length)):
        yield outcome(f"frequencies, {title}", partial(_frequencies, ours, embedding, tokens))
    yield outcome("rotated logits", partial(_logits, ours.double(), embedding, rotate, width))


def theirs(file: str) -> tuple[Any, Any, Any]:
    """transformers' configuration, rotary embedding and function that applies it."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
        from transformers.utils.logging import set_verbosity_error
    except ImportError:
        raise UsageError(
            f"check hf={file} needs transformers, which is not installed: pip install 'pe-lab[hf]'"
        ) from None
    set_verbosity_error()  # The outcome says what its warnings would.
    saved = read(file, "hf")
    kind = str(saved.get("model_type"))
    if kind not in CONFIG_MAPPING:
        raise UsageError(f"check hf={file}: transformers has no model_type={kind}: correct it")
    try:
        text = CONFIG_MAPPING[kind].from_dict(saved).get_text_config()
    except Exception as error:  # of any kind: each model has checks of its own
        raise UsageError(
            f"check hf={file}: transformers cannot read it ({reason(error)}): correct it"
        ) from None
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(f"check hf={file}: model_type={kind} is no causal language model")
    module = importlib.import_module(MODEL_FOR_CAUSAL_LM_MAPPING[type(text)].__module__)
    made = [one for key, one in vars(module).items() if key.endswith("RotaryEmbedding")]
    own = len(made) != 1 or "layer_type" in inspect.signature(made[0].forward).parameters
    if own or not hasattr(module, "apply_rotary_pos_emb"):
        raise UsageError(
            f"check hf={file}: model_type={kind} rotates in its own way, which is not compared: "
            "give a model like llama"
        )
    return text, made[0](text), module.apply_rotary_pos_emb


def _frequencies(ours: RoPE, embedding: Any, tokens: int) -> str:
    """Of a sequence of that length: the angles from one token to the next, and the length of the
    factors."""
    pos = torch.tensor([[0, 1, tokens - 1]])
    embedding(torch.zeros(1), pos)
    factors = ours.factors(pos)[0, 0]
    got, expected = (factors[1] / factors[0]).angle(), embedding.inv_freq.double()
    expected = torch.cat([expected, expected.new_zeros(len(got) - len(expected))])
    far = ((got - expected).abs() / expected.clamp(min=1e-12)).where(expected > 0, got.abs()).max()
    require(far <= NEAR, f"they differ by {far:.2g} of theirs, more than {NEAR:g}")
    scale, other = factors[1, 0].abs(), embedding.attention_scaling
    require(
        abs(scale - other) <= NEAR,
        f"the attention factor is {scale:.6g}, that of transformers is {other:.6g}",
    )
    return f"{len(got)} pairs differ by {far:.1g} at most; attention factor {other:.6g}"


def _logits(ours: RoPE, embedding: Any, rotate: Any, width: int) -> str:
    q, k = torch.randn(2, 1, 2, TOKENS, width, generator=torch.Generator().manual_seed(0))
    pos = torch.arange(TOKENS)[None]
    x = torch.zeros(1, TOKENS, 1)
    inputs = AttentionInputs(x, q, k, k, pos, pos)
    got: Tensor = torch.matmul(*_transposed(*ours.rotate(q.double(), k.double(), inputs)))
    cos, sin = embedding(q, pos)
    turned = cos.shape[-1]
    if turned == 1 or turned > width:
        raise NotClaimedError("the model rotates in its own shapes")
    order = _order(width, turned, ours.halves)
    (q, rest_q), (k, rest_k) = (y[..., order].split((turned, width - turned), -1) for y in (q, k))
    q, k = rotate(q, k, cos, sin)
    both = torch.cat((q, rest_q), -1), torch.cat((k, rest_k), -1)
    expected = torch.matmul(*_transposed(*both))
    far = (got - expected).abs().max() / expected.abs().max()
    if far > 10 * NEAR:
        raise ContractError(f"they differ by {far:.2g} of the largest, more than {10 * NEAR:g}")
    return f"{TOKENS} tokens differ by {far:.1g} of the largest at most"


def _order(width: int, turned: int, halves: bool) -> Tensor:
    """Our features in their order, where part of them is rotated: they put the others last."""
    features = torch.arange(width)
    if not halves:
        return features
    low, high = features.chunk(2)
    n = turned // 2
    return torch.cat([low[:n], high[:n], low[n:], high[n:]])


def _transposed(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q, k.transpose(-1, -2)
