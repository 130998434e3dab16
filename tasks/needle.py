"""Variables in filler."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task
from pe_lab.tasks.copy import distinct

ASSIGNED = 2  # tokens of an assignment, a name and its value
ASKED = 3  # tokens of a question with its answer
TENTHS = 10


@dataclass(frozen=True, kw_only=True)
class Needle(Task):
    """Recall variables assigned somewhere in filler: a small needle in a haystack.

    length 15, 2 variables, tokens over scored targets:

        f1 f6 x3 5 f0 f2 f2 f7 x1 0 ? x1 0 ? x3
                                      0      5

    n_variables different names, each with its value behind it, are in uniform places among uniform
    filler words. Then each of them is asked for, in random order, and answered. Names are drawn
    without replacement, values are uniform. Scored: the values.

    Vocabulary: filler words f0 .., names x0 .., values 0 .. and ?. Errors are also broken down by
    the distance in tokens from the value to the question, and by depth in tenths of the text: 0 is
    its beginning, 9 just before the questions. Splits: long_x4, long_x8 and long_x16 have as many
    variables in longer text, for changes of an encoding at test time (``pe-lab eval``).
    Metric: share of wrong values.

    Source: after the needle in a haystack and the variable tracking of RULER, Hsieh 2024 (arXiv
    2404.06654), whose filler and questions are sentences; the size and the form are ours.
    """

    length: Annotated[int, Field(ge=4)]
    """Tokens that the model reads."""
    n_variables: PositiveInt
    n_names: PositiveInt
    n_values: PositiveInt
    n_filler: PositiveInt

    exact_tags: ClassVar[frozenset[str]] = frozenset({"depth"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_above("n_variables", "n_names")
        if self.length < (least := self._least):
            raise ValueError(
                f"task.length={self.length} is too short for task.n_variables={self.n_variables}, "
                f"which take {least} tokens with their questions; raise the one or lower the other"
            )

    @property
    def _least(self) -> int:
        return (ASSIGNED + ASKED) * self.n_variables - 1

    @property
    def vocab(self) -> tuple[str, ...]:
        filler = (f"f{i}" for i in range(self.n_filler))
        names = (f"x{i}" for i in range(self.n_names))
        return (*filler, *names, *map(str, range(self.n_values)), "?")

    @property
    def n_tokens(self) -> int:
        return self.length

    def at_length(self, length: int) -> Self:
        """With as many variables."""
        if length < self._least:
            raise ValueError(
                f"a length of {length} is too short for {self.n_variables} variables: give at "
                f"least {self._least}"
            )
        return replace(self, length=length, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        asked, first_name = self.n_variables, self.n_filler
        first_value = first_name + self.n_names
        question = first_value + self.n_values
        names = first_name + distinct(rng, self.n_names, (n, asked))
        values = rng.integers(first_value, question, (n, asked))
        text = self.length + 1 - ASKED * asked
        # An assignment is one unit and so is a filler word: all arrangements are equally likely.
        units = text - (ASSIGNED - 1) * asked
        chosen = rng.random((n, units)).argpartition(asked - 1, axis=1)[:, :asked]
        # The first of the variables drawn is the first in the text; it is asked for anywhere.
        place = np.sort(chosen, axis=1) + (ASSIGNED - 1) * np.arange(asked)
        order = distinct(rng, asked, (n, asked))
        row = np.arange(n)[:, None]
        sequences = np.empty((n, self.length + 1), dtype=np.int64)
        sequences[:, :text] = rng.integers(0, self.n_filler, (n, text))
        sequences[row, place] = names
        sequences[row, place + 1] = values
        questions = text + ASKED * np.arange(asked)
        sequences[:, questions] = question
        sequences[:, questions + 1] = names[row, order]
        sequences[:, questions + 2] = values[row, order]
        scored = np.zeros((n, self.length), dtype=bool)
        scored[:, questions + 1] = True
        depth, distance = np.zeros((2, n, self.length), dtype=np.int64)
        found = place[row, order]
        depth[:, questions + 1] = TENTHS * found // text
        distance[:, questions + 1] = questions + 1 - (found + 1)
        tags = {"depth": depth, "distance": distance}
        return Batch(sequences[:, :-1], sequences[:, 1:], scored, tags=tags)

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The value behind the name in the text."""
        distance = batch.tags["distance"][row, place]
        return np.arange(batch.tokens.shape[1]) == (place - distance)[:, None]
