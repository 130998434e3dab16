"""Termination: when a copy is complete."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from pe_lab.core.task import Batch
from pe_lab.tasks.copy import Copy


@dataclass(frozen=True, kw_only=True)
class Termination(Copy):  # type: ignore[misc]
    """Copy letters, and end the copy.

    3 letters, room 2, tokens over scored targets:

        <bos> b p o | b p o <pad> <pad>
                    b p o <eos>

    As copy with bos_eos, with room for tokens after the longest answer. The preset sets
    eval.generate: the model writes each answer up to the last place. Three more metrics are shares
    of these answers: right (all letters and <eos>), too_early (<eos> before its place) and endless
    (no <eos>). The others have a wrong letter or a late <eos>. With letters repeat and p 1 the end
    must be counted. Splits: long_x2 and long_x4 have exactly twice and four times max_letters.
    """

    room: PositiveInt
    bos_eos: bool = field(default=True, init=False)

    end: ClassVar[str | None] = "<eos>"

    @property
    def others(self) -> int:
        return super().others + self.room

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        batch = super().sample(rng, n)
        room = batch.scored[:, ::-1].argmax(axis=1)
        return replace(batch, lengths=batch.tokens.shape[1] - room)
