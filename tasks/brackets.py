"""Bracket sentences."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task
from pe_lab.core.validation import as_yaml

Floats = npt.NDArray[np.float64]

OPENING, CLOSING = "([{<", ")]}>"  # further types: (4 4), (5 5), ..
ENOUGH = 0.8
"""The share of the probability of closing brackets that the correct one must exceed."""


@dataclass(frozen=True, kw_only=True)
class Brackets(Task):
    """Sentences of nested brackets: close the right one, or recall the first of a sentence.

    mode close, k 2, m 3, length 16, tokens over scored targets:

        . . [ ] ( ) [ ( ) ] [ ] . ( )
            ]   )     ) ]   ]     )

    mode sentence:

        ( [ ] ) . [ ] . ( ) [ ] . ?2
                                  [

    Dyck-(k, m): k types of brackets, at most m open at once. Outside all brackets the next token
    opens one or ends the sentence (.); inside it opens or closes, each with 1/2. With m open it
    closes. Types are uniform. Sentences are concatenated and cut at length. An outermost pair wider
    than max_gap is drawn again (null: no limit).

    - close. Scored: where a closing bracket is next, also by distance and depth (1 is outermost).
      An answer is right where the correct bracket has more than 80 % of the probability of closing
      brackets. beyond_gap scores only those farther from their opening than that, and is meant for
      splits.
    - sentence. No sentence is empty, and tokens after the last end are cut off. A query ?n asks for
      the first bracket of the n-th sentence from the end. n is uniform from 1 to n_back or the
      number of sentences. A text without a whole sentence is drawn again. Shorter ones are padded
      on the right.

    Vocabulary: the brackets and the end; in mode sentence also ?1 .. and <pad>. Splits: long_x2 and
    long_x4 change the length, deep allows two more open brackets. wide_gap (mode close) lifts
    max_gap and scores only closings beyond it. Metric: share of wrong answers.

    Source: Hewitt 2020 (arXiv 2010.07515), whose code scores every prefix with an open bracket,
    here only those before a closing one; Yao 2021 (arXiv 2105.11115).
    """

    mode: Literal["close", "sentence"]
    k: PositiveInt
    m: PositiveInt
    length: Annotated[int, Field(ge=5)]
    """Tokens in a sequence, query and answer included; the model reads all but the last."""
    max_gap: PositiveInt | None
    beyond_gap: NonNegativeInt | None
    n_back: PositiveInt | None
    """Mode sentence: how far back a query can reach."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, changes in self.splits.items():
            if "beyond_gap" in changes and changes["beyond_gap"] is None:
                raise ValueError(
                    f"task.splits.{name}.beyond_gap is null, so that the split measures nothing "
                    f"new; give task.max_gap a number or drop it: ~task.splits.{name}"
                )
        if (self.n_back is None) == (self.mode == "sentence"):
            raise ValueError(
                f"task.n_back is {'null' if self.n_back is None else self.n_back} in mode "
                f"{self.mode}; it is a number in mode sentence and null in mode close: "
                "take task=brackets_sentence or task=brackets"
            )
        if self.beyond_gap is None:
            return
        if self.mode == "sentence":
            raise ValueError(
                f"task.beyond_gap is {self.beyond_gap}, but mode sentence scores no closings; "
                "set it to null, or take task=brackets"
            )
        # Between a bracket and its closing one there are pairs, none where m is 1.
        room = self.length if self.max_gap is None else min(self.length, self.max_gap + 1)
        farthest = 1 if self.m == 1 else room // 2 * 2 - 1
        if self.beyond_gap >= farthest:
            raise ValueError(
                f"task.beyond_gap is {self.beyond_gap}, but no gap is beyond {farthest} with "
                f"task.m={self.m}, task.length={self.length} and task.max_gap="
                f"{as_yaml(self.max_gap)}: nothing is scored; use longer sequences, lower "
                "task.beyond_gap, or drop the split that sets it, like ~task.splits.wide_gap"
            )

    @property
    def vocab(self) -> tuple[str, ...]:
        opening = [OPENING[i] if i < len(OPENING) else f"({i}" for i in range(self.k)]
        closing = [CLOSING[i] if i < len(CLOSING) else f"{i})" for i in range(self.k)]
        text = (*opening, *closing, ".")
        if self.n_back is None:
            return text
        return (*text, *(f"?{n}" for n in range(1, self.n_back + 1)), "<pad>")

    @property
    def n_tokens(self) -> int:
        return self.length - 1

    def at_length(self, length: int) -> Self:
        if length < 4:
            raise ValueError(f"a length of {length} is too short for brackets: give at least 4")
        return replace(self, length=length + 1, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        return self._close(rng, n) if self.n_back is None else self._sentence(rng, n, self.n_back)

    def correct(self, logits: Any, targets: Any) -> Any:
        if self.mode == "sentence":
            return super().correct(logits, targets)
        closing = logits[:, self.k : 2 * self.k].softmax(-1)
        return closing.gather(-1, targets[:, None] - self.k)[:, 0] > ENOUGH

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The opening bracket; in mode sentence the first bracket of the sentence asked for."""
        index = np.arange(batch.tokens.shape[1])
        if self.mode == "close":
            found = place + 1 - batch.tags["distance"][row, place]
        else:
            ends = (batch.tokens[row] == 2 * self.k) & (index < place[:, None])
            before = ends.sum(axis=1) - batch.tags["back"][row, place]  # sentences before it
            # Behind the end of the sentence before it, or at the start.
            last = (ends.cumsum(axis=1) == before[:, None]).argmax(axis=1)
            found = np.where(before == 0, 0, last + 1)
        return index == found[:, None]

    def answer_from(self, words: list[str]) -> str:
        return self.vocab[self.vocab.index(words[0]) + self.k * (self.mode == "close")]

    def _close(self, rng: np.random.Generator, n: int) -> Batch:
        text = self._text(rng, n, self.length)
        gap, depth = text.gap[:, 1:], text.depth[:, 1:]
        scored = gap > (self.beyond_gap or 0)
        tags = {"distance": gap * scored, "depth": depth * scored}
        return Batch(text.tokens[:, :-1], text.tokens[:, 1:], scored, tags=tags)

    def _sentence(self, rng: np.random.Generator, n: int, n_back: int) -> Batch:
        t = self.length - 2
        text = self._text(rng, n, t)
        tokens, ends = text.tokens, text.ends
        while len(missing := np.flatnonzero(~ends.any(axis=1))):
            again = self._text(rng, len(missing), t)
            tokens[missing], ends[missing] = again.tokens, again.ends
        n_sentences = ends.sum(axis=1)
        back = 1 + (rng.random(n) * n_sentences.clip(max=n_back)).astype(np.int64)
        # Behind the end of the sentence before it, or at the start.
        found = ends.cumsum(axis=1, dtype=np.int32) == (n_sentences - back)[:, None]
        first = found.argmax(axis=1) + (back < n_sentences)
        whole = t - ends[:, ::-1].argmax(axis=1)
        row = np.arange(n)
        pad = len(self.vocab) - 1
        sequences = np.full((n, self.length), pad)
        kept = np.arange(t) < whole[:, None]
        sequences[:, :t][kept] = tokens[kept]
        sequences[row, whole] = 2 * self.k + back
        sequences[row, whole + 1] = tokens[row, first]
        place = np.arange(self.n_tokens)
        tokens = np.where(place <= whole[:, None], sequences[:, :-1], pad)  # no answer is read
        scored = place == whole[:, None]
        tags = {"back": back[:, None] * scored}
        return Batch(tokens, sequences[:, 1:], scored, whole + 1, tags)

    def _text(self, rng: np.random.Generator, n: int, t: int) -> "_Text":
        walk, u = self._walk, rng.random((t, n))
        states, opens = np.empty((t + 1, n), dtype=np.intp), np.empty((t, n), dtype=bool)
        states[0] = _BETWEEN
        chance, choice = np.empty(n), np.empty(n, dtype=np.intp)
        for step in range(t):
            # In place: these few calls take most of the time of a text.
            walk.chance.take(states[step], out=chance, mode="clip")
            np.less(u[step], chance, out=opens[step])
            np.add(states[step], opens[step], out=choice)
            walk.after.take(choice, out=states[step + 1], mode="clip")
        before, opens = walk.depth.take(states[:-1].T), opens.T.copy()
        depth = before + opens  # of the bracket at this place, 0 where a sentence ends
        ends = depth == 0
        closes = ~(opens | ends)
        opener = np.arange(n * t)  # a closing bracket's opening one; every other token itself
        for level in range(1, self.m + 1):
            # Of one depth, an opening bracket and its closing one follow each other.
            brackets = np.flatnonzero(depth == level)
            closing = np.flatnonzero(closes.ravel()[brackets])
            opener[brackets[closing]] = brackets[closing - 1]
        kind = rng.integers(0, self.k, (n, t))
        tokens = (kind.take(opener) + self.k * closes.ravel()).reshape(n, t)
        tokens[ends] = 2 * self.k
        gap = (np.arange(n * t) - opener).reshape(n, t)
        return _Text(tokens, ends, gap, depth)

    @cached_property
    def _walk(self) -> "_Walk":
        """Left to right, a token depends on the depth and, where max_gap limits it, on the
        steps left to the outermost pair. A pair too wide need not be drawn to be rejected:
        from depth d with r steps left it is in time with probability p(r, d), and, if
        it is, opens with probability p(r - 1, d + 1) / 2 p(r, d).
        """
        limit, used = (1, 0) if self.max_gap is None else (self.max_gap, 1)
        in_time = np.ones((limit + 1, self.m + 2))
        in_time[:, -1] = 0
        if self.max_gap is not None:
            in_time[0, 1:] = 0
            for r in range(1, limit + 1):
                in_time[r, 1:-1] = (in_time[r - 1, :-2] + in_time[r - 1, 2:]) / 2
                in_time[r, self.m] = in_time[r - 1, self.m - 1]
        left, depth = (i.ravel() + 1 for i in np.indices((limit, self.m)))
        later = (left - used).clip(1)
        # Where p is 0 the state is never reached.
        p = np.maximum(in_time[left, depth], np.finfo(float).tiny)
        first = 1.0 if self.mode == "sentence" else 0.5
        begun = self._inside(limit, 1)
        opened = np.append([begun, begun], self._inside(later, (depth + 1).clip(max=self.m)))
        closed = np.append(
            [_BETWEEN, _BETWEEN], np.where(depth == 1, _OUTSIDE, self._inside(later, depth - 1))
        )
        return _Walk(
            chance=np.append([first, 0.5], in_time[left - used, depth + 1] / 2 / p).repeat(2),
            after=2 * np.stack((closed, opened), axis=1).ravel(),
            depth=np.append([0, 0], depth).repeat(2),
        )

    def _inside(self, left: Any, depth: Any) -> Any:
        """The state with so many steps left and so many brackets open."""
        return 2 + (left - 1) * self.m + depth - 1


_BETWEEN, _OUTSIDE = 0, 1
"""The states with no bracket open: a sentence not begun, and one that can end or go on."""


@dataclass(frozen=True)
class _Walk:
    """A Markov chain of bracket depths. A state's number is doubled, so that adding whether it
    opens leads to what comes ``after`` it; ``chance`` to open and ``depth``, how many brackets are
    open, are each there twice."""

    chance: Floats
    after: Ints
    depth: Ints


@dataclass(frozen=True)
class _Text:
    """Tokens, where sentences end, the gap at closing brackets (else 0), the depth of brackets."""

    tokens: Ints
    ends: Bools
    gap: Ints
    depth: Ints
