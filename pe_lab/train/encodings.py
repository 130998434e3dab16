"""Builds the encodings of a model, one for each layer, says which of them it cannot use, and opens
the one door to ``pe_lab.kernels``."""

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import combinations
from typing import Any

import torch
from torch import nn

from pe_lab.config.schema import Config
from pe_lab.core.console import logger
from pe_lab.core.errors import UsageError
from pe_lab.core.rng import torch_seed
from pe_lab.core.validation import check_section
from pe_lab.models.config import ModelConfig
from pe_lab.pe.base import Dims, PositionalEncoding, make_encoding
from pe_lab.pe.functional import first_true
from pe_lab.pe.none import NoPE
from pe_lab.pe.positions import Positions


def seed_of_weights(config: Config) -> int:
    return config.seed if config.seed_init is None else config.seed_init


def initial_encodings(
    config: Config, dims: Dims, model_config: ModelConfig
) -> list[PositionalEncoding]:
    """Return the encoding of each layer. Its weights come from a separate random stream, so that
    with one seed every encoding starts from the same trunk."""
    with torch.random.fork_rng():
        torch.manual_seed(torch_seed(seed_of_weights(config), "encoding"))
        return build_encodings(config.pe, dims, model_config.layers_without_encoding())


def build_encodings(
    section: Mapping[str, Any], dims: Dims, without: frozenset[int] = frozenset()
) -> list[PositionalEncoding]:
    """Return one encoding for each layer; it is NoPE where the encoding would have no effect.

    Args:
        without: the layers without the encoding.
    """
    valid_section = check_section(section, "pe", PositionalEncoding, leading=1)
    sizes = [dims.at_layer(layer) for layer in range(dims.n_layers)]
    encodings = [make_encoding(valid_section.make, size) for size in sizes]
    # The input exists once: only the first layer's encoding changes it.
    hooks = [encodings[0].hooks(), *(encoding.hooks() - {"embed"} for encoding in encodings[1:])]
    encoded = [layer for layer, of_layer in enumerate(hooks) if of_layer and layer not in without]
    if without and (not encoded or "embed" in hooks[0]):
        raise UsageError(
            "model.layers.<i>.encoded=false has no effect on an encoding of the input, and leaves "
            "none in the model where all layers have it: leave it out, or give pe=none"
        )
    if not encoded:
        return [NoPE(size) for size in sizes]
    first = encodings[encoded[0]]
    if first.share_layers:
        encodings = [first] * dims.n_layers
    for lower, layer in combinations(encoded, 2):
        if encodings[layer] is not encodings[lower]:
            encodings[layer].share(encodings[lower])
    shared = [
        id(one)
        for encoding in encodings
        for one in (*encoding.modules(), *encoding.parameters(), *encoding.buffers())
    ]
    carries = first.share_layers or any("layer_state" in hooks[layer] for layer in encoded)
    if dims.layer_heads is not None and (carries or len({*shared}) < len(shared)):
        raise UsageError("model.layers.<i>.n_heads cannot differ: layers share this encoding")
    return [
        encodings[layer] if layer in encoded else NoPE(size) for layer, size in enumerate(sizes)
    ]


def use_kernels(model: nn.Module) -> None:
    """Have kernels compute the attention of a model. Without them it is right, and slower."""
    if find_spec("pe_lab.kernels") is None:
        logger.info("no kernels (pe_lab/kernels is missing): train.fast=true changes nothing")
        return
    from pe_lab import kernels

    kernels.use_kernels(model)


def reason_to_refuse(
    model_config: ModelConfig, encoding: PositionalEncoding, positions: Positions
) -> str | None:
    """Why an encoding cannot be used with this model or these positions: the end of a sentence that
    begins with pe=NAME. None if it can be used."""
    reads, falls, n = encoding.reads_positions, not positions.increasing, len(positions.axes)
    why = model_config.refuses(encoding)
    return first_true(
        (
            model_config.restarts_positions and falls,
            "is not possible: this model restarts positions, and these do not only increase",
        ),
        (why is not None, why),
        (
            reads is not None and n not in (0, encoding.axes),
            f"reads {encoding.axes} id of a token, and these positions give {n}",
        ),
        (
            reads is int and not positions.whole,
            "looks positions up or counts them, and these positions are fractions",
        ),
        (
            reads is not None and falls and not encoding.any_order,
            "needs increasing positions, and these fall and repeat",
        ),
    )
