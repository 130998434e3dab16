"""Which layers of a released model rotate, and how: read by transformers' own configurations.

``pe-lab check hf=config.json pe=NAME`` compares an encoding with it.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pe_lab.check.base import Outcome, outcome, require
from pe_lab.core.errors import UsageError, reason
from pe_lab.pe.base import Dims
from pe_lab.pe.rope import RoPE
from pe_lab.train.encodings import build_encodings

NEAR = 1e-5
"""Theirs are computed in float32."""

# What only the code of the models says: tests/test_hf_rotation.py compares it with that code.
WITHOUT_ATTENTION = {"linear_attention", "conv", "mlp", "moe"}
FULL_LAYERS_DO_NOT_ROTATE = {
    "afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1", "lara_mini",
}  # fmt: skip
ROTATES_IF = {
    "falcon": ("alibi", False),
    "granitemoehybrid": ("position_embedding_type", "rope"),
    "zamba2": ("use_mem_rope", True),
}
PARTS = {
    ("deepseek_v4", "sliding_attention"): "main",
    ("deepseek_v4", "compressed_sparse_attention"): "compress",
    ("deepseek_v4", "heavily_compressed_attention"): "compress",
}


def check_rotation(file: str, section: dict[str, Any]) -> Iterator[Outcome]:
    """Compare frequencies and attention factor with those that transformers computes for each kind
    of layer, at the trained length and at twice as many tokens.

    Raises:
        UsageError: the file, the model or its rotation is not known.
    """
    try:
        config = AutoConfig.for_model(**json.loads(Path(file).read_text("utf-8")))
        config = config.get_text_config()
        parts = parts_of_layers(config)
        rotating = {part: dims_and_rotations(config, part) for part in parts if part is not None}
    except Exception as error:  # of any kind: each model has checks of its own
        # Where transformers checks a key, the cause is its sentence on the value.
        cause = error.__cause__
        why = reason(cause) if cause else f"{type(error).__name__}: {reason(error)}"
        raise UsageError(
            f"check hf={file}: transformers cannot read it ({why}): compare its keys and the types "
            "of its values with those of a released config.json"
        ) from None
    for part, (dims, by_length) in rotating.items():
        (ours,) = build_encodings(section, dims)
        if not isinstance(ours, RoPE):
            raise UsageError(f"check hf={file} compares rotations: choose an encoding like rope")
        for tokens, theirs in by_length.items():
            name = f"{part} {tokens} tokens".strip()
            yield outcome(name, partial(compare, ours, tokens, *theirs))
    if without := [str(layer) for layer, part in enumerate(parts) if part is None]:
        found = f"no rotation in layers {', '.join(without)} of {len(parts)}"
        yield Outcome("layers without", "not claimed", found)


def parts_of_layers(config: Any) -> list[str | None]:
    """For each layer the part of ``rope_parameters`` by which it rotates, "" if there are no parts;
    None: the layer has no rotation."""
    n, kind = config.num_hidden_layers, config.model_type
    # A key that is left over in a file becomes an attribute, too, but no field of the class.
    keys = hasattr(type(config), "rope_parameters") and config.rope_parameters
    key, value = ROTATES_IF.get(kind, ("model_type", kind))
    if not keys or getattr(config, key) != value:
        return [None] * n
    thetas = getattr(config, "layer_rope_theta", None) or [True] * n
    dense = kind == "cohere2_moe" and "dense" in config.mlp_layer_types
    if dense or {*thetas} - {0, None, True, keys.get("rope_theta")}:
        raise UsageError(f"layers of this {kind} rotate each in its own way")
    with_rope = getattr(config, "no_rope_layers", None) or thetas
    layer_types = getattr(config, "layer_types", None) or [""] * n
    nested = config.nested_rope_parameter_keys(keys)
    still = set(WITHOUT_ATTENTION)
    if kind in FULL_LAYERS_DO_NOT_ROTATE and config.sliding_window is not None:
        still.add("full_attention")
    parts = [PARTS.get((kind, one), one) if nested else "" for one in layer_types]
    return [
        part if rotates and one not in still and (keys[part] if nested else True) else None
        for one, part, rotates in zip(layer_types, parts, with_rope, strict=True)
    ]


def dims_and_rotations(config: Any, part: str) -> tuple[Dims, dict[int, tuple[Tensor, float]]]:
    """Sizes of layers with this part; number of tokens -> frequencies and attention factor."""
    keys = config.rope_parameters[part] if part else config.rope_parameters
    sizes = config.per_layer_config[part] if config.is_heterogeneous else config
    length = keys.get("original_max_position_embeddings") or sizes.max_position_embeddings
    dims = Dims(
        sizes.hidden_size, sizes.num_attention_heads, 1, 1, length, length,
        head_width=getattr(sizes, "head_dim", None),
    )  # fmt: skip
    if keys["rope_type"] == "default":
        width = int(dims.head_dim * keys.get("partial_rotary_factor", 1.0))
        rotation = keys["rope_theta"] ** -(torch.arange(0, width, 2) / width), 1.0
        return dims, dict.fromkeys((length, 2 * length), rotation)
    init = partial(ROPE_INIT_FUNCTIONS[keys["rope_type"]], config, "cpu", layer_type=part or None)
    return dims, {tokens: init(seq_len=tokens) for tokens in (length, 2 * length)}


def compare(ours: RoPE, tokens: int, frequencies: Tensor, scale: float) -> str:
    """Our angles from one token to the next, in a sequence of that length; pairs that theirs leave
    out must not turn."""
    factors = ours.factors(torch.tensor([[0, 1, tokens - 1]]))[0, 0]
    angles = (factors[1] / factors[0]).angle().double()
    expected = pad(frequencies.double(), (0, len(angles) - len(frequencies)))
    far = float(((angles - expected).abs() / expected.where(expected > 0, 1)).max())
    require(far <= NEAR, f"frequencies differ by {far:.2g} of theirs, more than {NEAR:g}")
    ours_scale = float(factors[1, 0].abs())
    same = abs(ours_scale - scale) <= NEAR
    require(same, f"the attention factor is {ours_scale:.6g}, theirs is {scale:.6g}")
    return f"{len(angles)} pairs differ by {far:.1g} at most; attention factor {scale:.6g}"
