"""Every encoding in conf/pe and every choice in its signature, found by looking."""

from typing import Any

from hydra.utils import get_object

from docs import facts
from pe_lab.check.base import (
    MAX_LEN,
    TRAIN_LEN,
    TRANSFORMER,
    VOCAB,
    Section,
    choices,
    in_pieces,
    move_parameters,
    other_values,
    scattered,
    sequential,
    tokens,
)
from pe_lab.check.base import build_transformer as model
from pe_lab.core.errors import UsageError
from pe_lab.pe.base import HOOKS, Dims
from pe_lab.train.encodings import build_encodings

__all__ = [
    "MAX_LEN",
    "SECTIONS",
    "TRAIN_LEN",
    "VARIANTS",
    "VOCAB",
    "Section",
    "accepted",
    "dims",
    "in_pieces",
    "model",
    "move_parameters",
    "other_values",
    "scattered",
    "sequential",
    "tokens",
]

SECTIONS: dict[str, Section] = {name: facts.section(name) for name in facts.names()}


def dims(**changes: Any) -> Dims:
    sizes = {key: TRANSFORMER[key] for key in ("d_model", "n_heads", "n_layers")}
    lengths = {"vocab_size": VOCAB, "train_len": TRAIN_LEN, "max_len": MAX_LEN}
    return Dims(**{**sizes, **lengths, **changes})


def accepted(section: Section, sizes: Dims) -> bool:
    try:
        build_encodings(section, sizes)
    except UsageError:
        return False
    return True


def turned_by(section: Section, key: str) -> str:
    """The yaml for which the choices of this key are tried: of those with the same hooks and this
    key the simplest, as pi turns pairs the way rope does, at other angles."""
    cls = get_object(section["_target_"])
    alike = []
    for name, other in SECTIONS.items():
        found = get_object(other["_target_"])
        if key in other and all(getattr(cls, h) is getattr(found, h) for h in HOOKS):
            alike.append((len(found.__mro__), name))
    return min(alike)[1]


def every_variant() -> dict[str, Section]:
    """The default of each yaml, and each of its other choices alone."""
    found = dict(SECTIONS)
    for name, section in SECTIONS.items():
        for words, changed in choices(section).items():
            if words and turned_by(section, words.partition("=")[0]) == name:
                found[f"{name}-{words}"] = changed
    return found


VARIANTS = every_variant()
