"""The encodings of a model, one for each layer, and why a model or positions refuse one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pe_lab.config.check import encoding_section, repository_of
from pe_lab.core.errors import UsageError
from pe_lab.core.instantiate import instantiate
from pe_lab.models.config import ModelConfig
from pe_lab.models.outside import OWN_POSITIONS
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.combined import Combined
from pe_lab.pe.none import NoPE
from pe_lab.pe.positions import Positions

SHIPPED = [{"provider": "main", "schema": "pkg", "path": "pe_lab.conf"}]


def build_encodings(
    section: dict[str, Any], dims: Dims, without: frozenset[int] = frozenset()
) -> list[PositionalEncoding]:
    """One encoding for each layer; NoPE where an encoding has no effect.

    Args:
        without: layers without the encoding.
    """
    layers = range(dims.n_layers)
    made: list[PositionalEncoding] = [
        instantiate(section, "pe", PositionalEncoding, dims.at_layer(layer)) for layer in layers
    ]
    if without and "embed" in made[0].hooks():
        raise UsageError(
            f"model.layers.{min(without)}.encoded=false has no effect on the input of the model, "
            "which this encoding changes: leave it true, or choose another encoding"
        )
    encoded = [
        layer
        for layer in layers
        if layer not in without and made[layer].hooks() - (frozenset() if layer == 0 else {"embed"})
    ]
    if not encoded:
        return [NoPE(dims.at_layer(layer)) for layer in layers]
    first = made[encoded[0]]
    common = type(first).share is not PositionalEncoding.share or "layer_state" in first.hooks()
    if dims.layer_heads is not None and (first.share_layers or common):
        raise UsageError(
            "model.layers.<i>.n_heads cannot differ with this encoding, which layers have in "
            "common: leave them null"
        )
    if without and first.share_layers and len(encoded) == 1 and not _fits_one_layer(section, dims):
        raise UsageError(
            "pe.share_layers=true has no effect, model.layers.<i>.encoded=false leaves layer "
            f"{encoded[0]} alone with the encoding: set pe.share_layers=false"
        )
    if first.share_layers:
        made = [first] * dims.n_layers
    for number, layer in enumerate(encoded):
        for lower in encoded[:number]:
            if made[layer] is not made[lower]:
                made[layer].share(made[lower])
    return [made[layer] if layer in encoded else NoPE(dims.at_layer(layer)) for layer in layers]


def _fits_one_layer(section: dict[str, Any], dims: Dims) -> bool:
    """Whether a model of one layer can have the encoding, as where sharing is the default."""
    try:
        instantiate(section, "pe", PositionalEncoding, replace(dims, n_layers=1).at_layer(0))
    except UsageError:
        return False
    return True


def refuse_encoding(model_config: ModelConfig, section: dict[str, Any], name: str) -> None:
    """Refuse an encoding for a model from outside, before it is made.

    Raises:
        UsageError: the model has positions of its own, and ``section`` is an encoding's.
    """
    if model_config.entry() and section.get("_target_") != f"{NoPE.__module__}.NoPE":
        raise UsageError(f"pe={name} {OWN_POSITIONS}")


def refused(model_config: ModelConfig, encoding: PositionalEncoding) -> str | None:
    """``ModelConfig.refuses`` with the names of the encodings that are not refused."""

    def fits(one: PositionalEncoding) -> bool:
        return model_config.refuses(one) is None

    text = model_config.refuses(encoding)
    if text is None or "{fitting}" not in text:
        return text
    named = text.replace("{fitting}", _fitting(model_config, encoding, fits))
    return f"{_part(encoding, fits)}{named}"


def refused_positions(
    model_config: ModelConfig, encoding: PositionalEncoding, positions: Positions, source: str
) -> str | None:
    """Why an encoding cannot read these positions: the end of a sentence that begins with pe=NAME;
    None if it can, or reads none.

    Args:
        source: the name of the positions.
    """

    def fits(one: PositionalEncoding) -> bool:
        read = len(positions.axes) in (0, one.axes) and (positions.increasing or one.any_order)
        whole = positions.whole or one.reads_positions is float
        return (read and whole) or one.reads_positions is None

    if fits(encoding):
        return None
    if len(positions.axes) not in (0, encoding.axes):
        given = f"{len(positions.axes)} ({', '.join(positions.axes)})"
        why = f"reads {encoding.axes} id of a token, and positions={source} gives {given}"
    elif not positions.whole:
        why = f"looks positions up or counts them, and those of positions={source} are fractions"
    else:
        why = f"needs increasing positions, and those of positions={source} fall and repeat"
    also = "" if positions.axes else ", or other positions"
    readers = _fitting(model_config, encoding, fits, reading=True)
    return f"{_part(encoding, fits)}{why}: choose an encoding that can ({readers}){also}"


def _part(encoding: PositionalEncoding, fits: Callable[[PositionalEncoding], bool]) -> str:
    """``with part NAME``, the first part of a combination that does not fit by itself."""
    parts = encoding.named() if isinstance(encoding, Combined) else []
    return next((f"with part {name} " for name, part in parts if not fits(part)), "")


def _fitting(
    model_config: ModelConfig,
    refused: PositionalEncoding,
    fits: Callable[[PositionalEncoding], bool],
    reading: bool = False,
) -> str:
    """The names of the encodings that fit, as far as sizes allow to say.

    Args:
        refused: the one that does not: its keys are to blame where its defaults fit.
        reading: only of those that read positions.
    """
    dims = model_config.dims(vocab_size=2, train_len=16, max_len=16)
    repository = repository_of(SHIPPED)
    names = []
    for name in sorted(repository.get_group_options("pe")):
        try:
            made = build_encodings(encoding_section(name, "pe", repository), dims)
        except UsageError:
            # Not with these sizes, or of parts that are not named yet.
            continue
        reads = any(one.reads_positions for one in made)
        if all(fits(one) for one in made) and (reads or not reading):
            names.append(f"{name} as its yaml has it" if type(made[0]) is type(refused) else name)
    return ", ".join(names)
