"""Sequences of a task with a header, as a file holds them, and checks of what is read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
FORMAT = 1
"""Version of the format, the header's first key."""
KEYS = {"pe_lab_data", "vocab", "in_order"}


@dataclass(frozen=True)
class Sequences:
    """What a file holds.

    Args:
        header: ``pe_lab_data`` (the format's version), ``vocab``, ``in_order`` (whether they are
            the batches of a run, one after another, and not a set to be shuffled), and whatever
            else makes the file again.
        lengths: (N,) real tokens; None: T for all.
    """

    header: Mapping[str, Any]
    tokens: Ints
    targets: Ints
    scored: npt.NDArray[np.bool_]
    lengths: Ints | None = None
    tags: Mapping[str, Ints] = field(default_factory=dict)
    positions: Mapping[str, Ints] = field(default_factory=dict)

    def grids(self) -> dict[str, Ints]:
        """Tags and position ids, under their names in a file."""
        tags = {f"tag.{name}": values for name, values in self.tags.items()}
        return tags | {f"positions.{axis}": ids for axis, ids in self.positions.items()}


def checked_header(found: Any) -> dict[str, Any]:
    """The header, if it is one; else ValueError."""
    if not isinstance(found, dict) or not found.keys() >= KEYS:
        raise ValueError(f"its header is not an object with {', '.join(sorted(KEYS))}")
    if found["pe_lab_data"] != FORMAT:
        raise ValueError(f"its format is {found['pe_lab_data']}, this program reads {FORMAT}")
    vocab = found["vocab"]
    if not isinstance(vocab, list) or not vocab or not all(isinstance(w, str) for w in vocab):
        raise ValueError("the vocabulary of its header is not a list of words")
    return found


def whole_numbers(rows: Sequence[Any], name: str) -> Ints:
    """An array of them; ValueError where they are none, or rows differ in length."""
    try:
        array = np.array(rows)
    except ValueError:
        raise ValueError(f"{name} of its sequences are not equally many") from None
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} are not whole numbers")
    return array.astype(np.int64)


def tags_and_positions(grids: Mapping[str, Ints]) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """Tags and position ids by their names."""
    tags, positions = (
        {name.removeprefix(prefix): a for name, a in grids.items() if name.startswith(prefix)}
        for prefix in ("tag.", "positions.")
    )
    return tags, positions
