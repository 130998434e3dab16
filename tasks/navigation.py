"""Navigation on a grid."""

from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Probability, Task

AXES = "xyz"
OBJECTS = "abcdefghijklmnopqrstuvw"


@dataclass(frozen=True, kw_only=True)
class Navigation(Task):
    """What there is at a place visited before, on a grid explored step by step.

    dims 1, size 4, 8 steps, tokens over scored targets:

        +x b +x _ -x b -x c +x b +x _ +x a +x
                  b         b              c

    A sequence alternates an action and the observation at the place where it leads. An action is a
    step to either side along one of ``dims`` axes of a grid of ``size`` places a side, whose ends
    are joined. A direction is drawn uniformly and kept for 1 to max_run steps. A place is empty
    with probability p_empty, else it holds one of n_objects, always the same. Scored: the objects
    at places visited before, with score_empty also that a place visited before is empty. The start
    was not observed. The model must find out which tokens are actions, and that +x undoes -x.

    Vocabulary: the actions, the objects and _ (empty). Errors are also broken down by the distance
    in tokens from the last observation of the place to the query. Splits: dense halves steps and
    size and empties fewer places, sparse doubles both and empties more, long_x4 has four times the
    steps. Metric: share of wrong observations.

    Source: Rambaud 2025, MapFormer, section 5.2 and B.3. That the ends are joined and that empty
    places do not count are our readings. Always answering "empty" would have an accuracy of .8 on
    its sparse set, where most models have less.
    """

    dims: Annotated[int, Field(ge=1, le=3)]
    size: Annotated[int, Field(ge=2, le=1000)]
    n_steps: Annotated[int, Field(ge=2)]
    """Actions in a sequence; the model reads each and all observations but the last."""
    max_run: PositiveInt
    n_objects: Annotated[int, Field(ge=1, le=len(OBJECTS))]
    p_empty: Probability
    score_empty: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p_empty == 1 and not self.score_empty:
            raise ValueError(
                f"task.p_empty is {self.p_empty}, so that no place has an object and nothing is "
                "scored: lower it, or set task.score_empty=true"
            )

    @property
    def vocab(self) -> tuple[str, ...]:
        actions = (sign + axis for axis in AXES[: self.dims] for sign in "+-")
        return (*actions, *OBJECTS[: self.n_objects], "_")

    @property
    def n_tokens(self) -> int:
        return 2 * self.n_steps - 1

    def at_length(self, length: int) -> Self:
        """On a grid of the same size."""
        if length < 3:
            raise ValueError(f"a length of {length} is too short for navigation: give at least 3")
        return replace(self, n_steps=(length + 1) // 2, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        t = self.n_steps
        action = self._actions(rng, n)
        place = np.zeros((n, t), dtype=np.int64)
        for axis in range(self.dims):
            step = (action == 2 * axis).astype(np.int64) - (action == 2 * axis + 1)
            place = place * self.size + step.cumsum(axis=1) % self.size
        # Sorted by place, in order of time: the visits of a place follow each other.
        order = place.argsort(axis=1, kind="stable")
        place = np.take_along_axis(place, order, axis=1)
        again = np.zeros((n, t), dtype=bool)
        again[:, 1:] = place[:, 1:] == place[:, :-1]
        first = np.maximum.accumulate(np.where(again, 0, np.arange(t)), axis=1)
        # A place holds what is drawn for the step of its first visit.
        empty = 2 * self.dims + self.n_objects
        objects = rng.integers(2 * self.dims, empty, (n, t))
        objects[rng.random((n, t)) < self.p_empty] = empty
        seen = np.take_along_axis(objects, np.take_along_axis(order, first, axis=1), axis=1)
        gap = np.zeros((n, t), dtype=np.int64)
        counts = again if self.score_empty else again & (seen < empty)
        gap[:, 1:] = (2 * np.diff(order, axis=1) - 1) * counts[:, 1:]
        observed, distance = np.empty((2, n, t), dtype=np.int64)
        np.put_along_axis(observed, order, seen, axis=1)
        np.put_along_axis(distance, order, gap, axis=1)
        sequences = np.stack([action, observed], axis=2).reshape(n, 2 * t)
        tag = np.zeros((n, self.n_tokens), dtype=np.int64)
        tag[:, ::2] = distance
        return Batch(sequences[:, :-1], sequences[:, 1:], tag > 0, tags={"distance": tag})

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """What was observed at the last visit to the place."""
        distance = batch.tags["distance"][row, place]
        return np.arange(batch.tokens.shape[1]) == (place - distance)[:, None]

    def _actions(self, rng: np.random.Generator, n: int) -> Ints:
        """Runs in one direction, the last one cut."""
        t = self.n_steps
        # Enough even if each run were of one step.
        direction = rng.integers(0, 2 * self.dims, (n, t))
        begins = rng.integers(1, self.max_run + 1, (n, t)).cumsum(axis=1)
        row, run = np.nonzero(begins < t)
        begun = np.zeros((n, t), dtype=np.int64)
        begun[row, begins[row, run]] = 1
        return np.take_along_axis(direction, begun.cumsum(axis=1), axis=1)
