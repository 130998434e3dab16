"""Every encoding in conf/pe and every choice in its signature, found by looking."""

import pytest
import torch
from hydra.utils import get_object
from program import assert_has

from docs import facts
from pe_lab.check.base import (
    MAX_LEN,
    TRAIN_LEN,
    VOCAB,
    Section,
    accepted,
    dims,
    in_pieces,
    model,
    move_parameters,
    other_values,
    scattered,
    sequential,
    tokens,
)
from pe_lab.core.errors import UsageError
from pe_lab.models.transformer import Transformer
from pe_lab.pe.base import HOOKS
from pe_lab.train.encodings import build_encodings

__all__ = [
    "MAX_LEN",
    "SECTIONS",
    "TRAIN_LEN",
    "VARIANTS",
    "VOCAB",
    "Section",
    "accepted",
    "assert_refused",
    "decoded",
    "dims",
    "in_pieces",
    "model",
    "move_parameters",
    "other_values",
    "scattered",
    "sequential",
    "tokens",
    "writes",
]

SECTIONS: dict[str, Section] = {name: facts.section(name) for name in facts.names()}


def assert_refused(name: str, changes: Section, words: list[str], **sizes: int) -> None:
    """These keys of an encoding are refused in one sentence, which holds the words."""
    with pytest.raises(UsageError) as refused:
        build_encodings({**SECTIONS[name], **changes}, dims(**sizes))
    message = str(refused.value)
    assert "\n" not in message
    assert_has(message, *words)


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
    found: dict[str, Section] = {}
    for name, section in SECTIONS.items():
        found[name] = section
        for key, value in section.items():
            if key == "_target_" or (
                isinstance(value, (int, float)) and not isinstance(value, bool)
            ):
                continue
            if turned_by(section, key) != name:
                continue
            for other in other_values(section, key):
                changed = {**section, key: other}
                if accepted(changed, dims()):
                    shown = "+".join(p["pe"] for p in other) if key == "parts" else other
                    found[f"{name}-{key}={shown}"] = changed
    return found


VARIANTS = every_variant()


def writes(section: Section) -> bool:
    """Whether a token's encoding does not depend on later tokens."""
    return not any(e.whole_sequence for e in build_encodings(section, dims()))


def decoded(built: Transformer, seen: torch.Tensor, pos: torch.Tensor, first: int) -> torch.Tensor:
    """What the model computes with a key cache: some tokens at once, the others one by one."""
    return in_pieces(built, seen, pos, first)
