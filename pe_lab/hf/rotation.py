"""``pe-lab check hf=config.json pe=NAME``: whether an encoding turns as a released model does."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pe_lab.check.base import Outcome, outcome, require
from pe_lab.core.errors import UsageError, reason
from pe_lab.pe.base import Dims
from pe_lab.pe.rope import RoPE
from pe_lab.train.encodings import build_encodings

NEAR = 1e-5
"""Theirs are computed in float32."""


def check_rotation(file: str, section: dict[str, Any]) -> Iterator[Outcome]:
    """Compare frequencies and attention factor with those that transformers computes for each type
    of layer, at the trained length and at twice as many tokens.

    Raises:
        UsageError: the file, the model or its rotation is not known.
    """
    config = read_config(file)
    heads, width = config.num_attention_heads, getattr(config, "head_dim", None)
    parameters: Any = getattr(config, "rope_parameters", None) or {}
    nested = bool(parameters) and all(isinstance(one, dict) for one in parameters.values())
    by_type = parameters if nested else {None: parameters}
    for layer_type, keys in by_type.items():
        length = keys.get("original_max_position_embeddings") or config.max_position_embeddings
        dims = Dims(config.hidden_size, heads, 1, 1, length, length, head_width=width)
        (ours,) = build_encodings(section, dims)
        if not isinstance(ours, RoPE):
            raise UsageError(f"check hf={file} compares rotations: choose an encoding like rope")
        for tokens in (length, 2 * length):
            name = f"{layer_type}, {tokens} tokens" if layer_type else f"{tokens} tokens"
            yield outcome(name, partial(compare, ours, config, keys, layer_type, tokens))


def read_config(file: str) -> Any:
    """transformers' configuration of the text model that a config.json describes."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        saved = json.loads(Path(file).read_text("utf-8"))
        return CONFIG_MAPPING[saved["model_type"]].from_dict(saved).get_text_config()
    except Exception as error:  # of any kind: each model has checks of its own
        raise UsageError(f"check hf={file}: transformers cannot read it: {reason(error)}") from None


def rotation_of(
    config: Any, keys: dict[str, Any], layer_type: str | None, tokens: int
) -> tuple[Tensor, float]:
    """Frequencies and attention factor of a type of layer for this number of tokens."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if (kind := keys["rope_type"]) != "default":
        return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=tokens, layer_type=layer_type)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = int(width * keys.get("partial_rotary_factor", 1.0))
    return keys["rope_theta"] ** -(torch.arange(0, width, 2) / width), 1.0


def compare(
    ours: RoPE, config: Any, keys: dict[str, Any], layer_type: str | None, tokens: int
) -> str:
    """Our angles from one token to the next, in a sequence of that length; pairs that theirs leave
    out must not turn."""
    frequencies, scale = rotation_of(config, keys, layer_type, tokens)
    factors = ours.factors(torch.tensor([[0, 1, tokens - 1]]))[0, 0]
    angles, expected = (factors[1] / factors[0]).angle().double(), frequencies.double()
    expected = torch.cat([expected, expected.new_zeros(len(angles) - len(expected))])
    gap = (angles - expected).abs() / expected.where(expected > 0, 1)
    far = float(gap.max())
    require(far <= NEAR, f"frequencies differ by {far:.2g} of theirs, more than {NEAR:g}")
    ours_scale = float(factors[1, 0].abs())
    same = abs(ours_scale - scale) <= NEAR
    require(same, f"the attention factor is {ours_scale:.6g}, theirs is {scale:.6g}")
    return f"{len(angles)} pairs differ by {far:.1g} at most; attention factor {scale:.6g}"
