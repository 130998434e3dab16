"""Every encoding in conf/pe and every choice in its signature, found by looking."""

from hydra.utils import get_object

from docs import facts
from pe_lab.check.base import (
    MAX_LEN,
    TRAIN_LEN,
    VOCAB,
    Section,
    accepted,
    dims,
    in_pieces,
    move_parameters,
    other_values,
    scattered,
    sequential,
    tokens,
)
from pe_lab.check.base import build_transformer as model
from pe_lab.pe.base import HOOKS

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
