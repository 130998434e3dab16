"""A task that gives position ids: a number, then the same number again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from pe_lab.core.task import Batch, Task


@dataclass(frozen=True, kw_only=True)
class Numbers(Task):
    """Copy a number of ``length`` digits; the answer is the second one, digit by digit.

    Equal digits of the two have equal ids, counted from 1; the sign between them has none:

        tokens   4 0 7 = 4 0        answers      4 0 7
        place    1 2 3 0 1 2        copy   1 1 1 0 2 2

    Args:
        axes: which of the two the task gives.
    """

    splits: dict[str, dict[str, int]]
    length: PositiveInt = 3
    axes: Literal["place", "both", "none"] = "place"

    generates: ClassVar[bool] = True
    separator: ClassVar[str | None] = "="

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*"0123456789", "=")

    @property
    def n_tokens(self) -> int:
        return 2 * self.length

    @property
    def position_axes(self) -> Mapping[str, int]:
        axes = {"place": self.length + 1, "copy": 3}
        return {name: most for name, most in axes.items() if self.axes in ("both", name)}

    def at_length(self, length: int) -> "Numbers":
        return replace(self, length=length // 2, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        digits = rng.integers(0, 10, (n, self.length))
        whole = np.concatenate([digits, np.full((n, 1), 10), digits], axis=1)
        place = np.arange(2 * self.length)
        ids = {
            "place": np.where(place == self.length, 0, place % (self.length + 1) + 1),
            "copy": np.where(place == self.length, 0, 1 + (place > self.length)),
        }
        given = {name: np.tile(ids[name], (n, 1)) for name in self.position_axes}
        scored = np.broadcast_to(place >= self.length, (n, len(place)))
        return Batch(whole[:, :-1], whole[:, 1:], scored, positions=given)
