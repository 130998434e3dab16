"""Associative recall with many queries."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task

BLANK = "_"


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """Recall the value of a key, or the value that it had n assignments ago.

    reassigned null, n_pairs 2, length 10, filling blank, tokens over scored targets:

        k4 v8 k2 v7 k4 _ _ _ k2 _
                    v8       v7

    reassigned 2, n_pairs 2, length 14:

        k3 v1 k5 v2 k3 v6 k5 v4 k3 v7 k3 v0 k5 v9
                                v1    v6    v2

    reassigned null is multi-query associative recall (MQAR): n_pairs pairs of a key and its value,
    then each key once more, at which its value is the answer. Keys and values are drawn without
    replacement. After the pairs come (length - 2 n_pairs) / 2 places of two tokens. The keys'
    places are drawn without replacement with weights i^(power - 1), i counted from 1, so a gap
    follows a power law. The other tokens there are _ or, with filling random, keys without a pair
    in this sequence.

    reassigned n is repeated recall (MQRAR n-back): nothing but pairs, first one of each key, then
    of uniform keys, each with a uniform value. At a key that was assigned at least n times before,
    the answer is the value of its n-th last assignment.

    Vocabulary: n_keys keys, n_values values and _. Errors are also broken down by the distance in
    tokens from the value to the query. Splits: long_x2 and long_x4 change the length and the number
    of pairs, more_pairs doubles the pairs. Metric: share of wrong values.

    Source: Arora 2024 (arXiv 2312.04927), whose code, HazyResearch/zoology, fills with any token of
    the vocabulary, which can assign a key again (its issue 29). n-back: Yang 2025 (arXiv
    2505.16381) after Tan 2025 (arXiv 2410.17980); how the keys are drawn is our reading of their
    example.
    """

    n_pairs: PositiveInt
    length: Annotated[int, Field(ge=4, multiple_of=2)]
    """Tokens that the model reads."""
    n_keys: PositiveInt
    n_values: PositiveInt
    power: Annotated[float, Field(gt=0, le=1)] | None
    filling: Literal["random", "blank"] | None
    reassigned: PositiveInt | None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("power", self.power), ("filling", self.filling)):
            if (value is None) == (self.reassigned is None):
                raise ValueError(
                    f"task.{name} is {'null' if value is None else value} with task.reassigned="
                    f"{'null' if self.reassigned is None else self.reassigned}: it is for "
                    "reassigned=null alone; take task=recall or task=recall_reassigned"
                )
        if self.length < self._shortest(self.n_pairs):
            raise ValueError(
                f"task.length is {self.length}, too short for task.n_pairs={self.n_pairs}: give "
                f"at least {self._shortest(self.n_pairs)}, or fewer pairs"
            )
        # Random filling is drawn from keys without a pair.
        least = self.n_pairs + (self.filling == "random")
        if self.n_keys < least:
            raise ValueError(
                f"task.n_keys is {self.n_keys}, too few for task.n_pairs={self.n_pairs}: give at "
                f"least {least}, in every split"
            )
        if self.reassigned is None and self.n_values < self.n_pairs:
            raise ValueError(
                f"task.n_values is {self.n_values}, too few for task.n_pairs={self.n_pairs}, whose "
                f"values differ: give at least {self.n_pairs}, in every split"
            )

    @property
    def vocab(self) -> tuple[str, ...]:
        keys = (f"k{i}" for i in range(self.n_keys))
        return (*keys, *(f"v{i}" for i in range(self.n_values)), BLANK)

    @property
    def n_tokens(self) -> int:
        return self.length

    def at_length(self, length: int) -> Self:
        """With proportionally many pairs."""
        if length < self._shortest(1):
            raise ValueError(
                f"a length of {length} is too short for recall: give at least {self._shortest(1)}"
            )
        length = length // 2 * 2
        n_pairs = max(1, self.n_pairs * length // self.length)
        return replace(self, length=length, n_pairs=n_pairs, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        if self.reassigned is None:
            return self._once(rng, n)
        return self._again(rng, n, self.reassigned)

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The value of the key, or the one that it had."""
        distance = batch.tags["distance"][row, place]
        return np.arange(batch.tokens.shape[1]) == (place - distance)[:, None]

    def _shortest(self, n_pairs: int) -> int:
        """Tokens that hold a place for each query or, reassigned, at least one query."""
        return 4 * n_pairs if self.reassigned is None else 2 * (self.reassigned * n_pairs + 1)

    def _once(self, rng: np.random.Generator, n: int) -> Batch:
        k, blank = self.n_pairs, self.n_keys + self.n_values
        keys = _distinct(rng, n, k, self.n_keys)
        values = self.n_keys + _distinct(rng, n, k, self.n_values)
        shape = n, self.length + 1 - 2 * k
        if self.filling == "random":
            # Counted among the keys without a pair, then moved past those that have one.
            filling = rng.integers(0, self.n_keys - k, shape)
            for key in np.sort(keys, axis=1).T:
                filling += filling >= key[:, None]
        else:
            filling = np.full(shape, blank)
        pairs = np.stack([keys, values], axis=2).reshape(n, 2 * k)
        sequences = np.concatenate([pairs, filling], axis=1)
        places = np.arange(1, (self.length - 2 * k) // 2 + 1)
        assert self.power is not None
        # The k first of exponential clocks: drawn without replacement with these rates.
        clocks = rng.exponential(size=(n, len(places))) / places ** (self.power - 1)
        asked = 2 * k + 2 * clocks.argsort(axis=1)[:, :k]
        np.put_along_axis(sequences, asked, keys, axis=1)
        answers = np.full((n, self.length), -1)
        np.put_along_axis(answers, asked, values, axis=1)
        distance = np.zeros((n, self.length), dtype=np.int64)
        np.put_along_axis(distance, asked, asked - (2 * np.arange(k) + 1), axis=1)
        return _batch(sequences, answers, distance)

    def _again(self, rng: np.random.Generator, n: int, back: int) -> Batch:
        k, pairs = self.n_pairs, self.length // 2 + 1  # the last is cut, but for a target
        which = np.empty((n, pairs), dtype=np.int64)
        which[:, :k] = np.arange(k)
        which[:, k:] = rng.integers(0, k, (n, pairs - k))
        keys = np.take_along_axis(_distinct(rng, n, k, self.n_keys), which, axis=1)
        values = self.n_keys + rng.integers(0, self.n_values, (n, pairs))
        # Sorted by key, in order of time: the n-th last of a key is n places before it.
        order = which.argsort(axis=1, kind="stable")
        now, then = order[:, back:], order[:, :-back]
        same = np.take_along_axis(which, now, axis=1) == np.take_along_axis(which, then, axis=1)
        answers, distance = np.full((2, n, 2 * pairs), -1)
        found = np.where(same, np.take_along_axis(values, then, axis=1), -1)
        np.put_along_axis(answers, 2 * now, found, axis=1)
        np.put_along_axis(distance, 2 * now, 2 * (now - then) - 1, axis=1)
        sequences = np.stack([keys, values], axis=2).reshape(n, -1)
        t = self.length
        return _batch(sequences[:, : t + 1], answers[:, :t], distance[:, :t])


def _batch(sequences: Ints, answers: Ints, distance: Ints) -> Batch:
    """answers: -1 where nothing is asked."""
    scored = answers >= 0
    targets = np.where(scored, answers, sequences[:, 1:])
    return Batch(sequences[:, :-1], targets, scored, tags={"distance": distance * scored})


def _distinct(rng: np.random.Generator, n: int, k: int, among: int) -> Ints:
    """(n, k) numbers below ``among``, without replacement in a row.

    Floyd's algorithm, which takes k steps, not ``among``; the order it leaves is not uniform.
    """
    drawn = np.empty((n, k), dtype=np.int64)
    for i, largest in enumerate(range(among - k, among)):
        number = rng.integers(0, largest + 1, n)
        taken = (drawn[:, :i] == number[:, None]).any(axis=1)
        drawn[:, i] = np.where(taken, largest, number)
    return rng.permuted(drawn, axis=1)
