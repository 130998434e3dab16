"""``seed``: one number, or two where ``seed.init`` and ``seed.data`` differ.

``seed.init`` draws the weights. ``seed.data`` draws the batches, their order, dropout and
positions. A configuration holds one number, or ``{init: .., data: ..}``.
"""

from collections.abc import Mapping
from typing import Any

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean

PARTS = ("init", "data")
WORDS = {f"seed.{part}": f"seed_{part}" for part in PARTS}
"""Key of the command line -> key for Hydra, in whose configuration ``seed`` is a number."""


def as_composed(word: str) -> str:
    """A word as Hydra composes it: ``++seed_init=1`` for ``seed.init=1``."""
    key, equals, value = word.partition("=")
    hidden = WORDS.get(key.lstrip("+"))
    return f"++{hidden}{equals}{value}" if hidden else word


def as_typed(word: str) -> str:
    """The inverse."""
    key, equals, value = word.removeprefix("++").partition("=")
    shown = next((shown for shown, hidden in WORDS.items() if hidden == key), None)
    return f"{shown}{equals}{value}" if shown else word


def folded(composed: Mapping[str, Any]) -> dict[str, Any]:
    """A composed configuration with both numbers in ``seed``."""
    hidden = WORDS.values()
    if not any(key in composed for key in hidden):
        return dict(composed)
    rest = {key: value for key, value in composed.items() if key not in hidden}
    seed = rest["seed"]
    both = dict(seed) if isinstance(seed, Mapping) else dict.fromkeys(PARTS, seed)
    both |= {part: composed[f"seed_{part}"] for part in PARTS if f"seed_{part}" in composed}
    return {**rest, "seed": both}


def apart(section: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with ``seed`` of the data and ``seed_init``; None if both are the same.

    Raises:
        UsageError: ``seed`` is a mapping of other keys.
    """
    seed = section.get("seed")
    if not isinstance(seed, Mapping):
        return dict(section)
    for key in seed:
        if key not in PARTS:
            raise UsageError(f"seed.{key} is not a key: {did_you_mean(str(key), PARTS)}")
    for key in PARTS:
        if key not in seed:
            raise UsageError(f"seed.{key} is missing: give seed.init and seed.data, or one number")
    same = seed["init"] == seed["data"] and not isinstance(seed["init"], bool)
    return {**section, "seed": seed["data"], "seed_init": None if same else seed["init"]}


def together(section: dict[str, Any]) -> dict[str, Any]:
    """The inverse of ``apart``."""
    rest = {key: value for key, value in section.items() if key != "seed_init"}
    if section["seed_init"] is None:
        return rest
    return {**rest, "seed": {"init": section["seed_init"], "data": section["seed"]}}
