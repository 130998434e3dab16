"""Next-token prediction on a text file."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.core.task import TRAIN, Batch, Task
from pe_lab.tasks.text_file import TextFile, Unit, read_text


@dataclass(frozen=True, kw_only=True)
class Text(Task):
    """The next character, or byte, of a text file.

    length 14, tokens over scored targets:

        T h e ␣ m i l l e r ␣ o f ␣
        h e ␣ m i l l e r ␣ o f ␣ H

    The file's first part is for training, the last ``test_share`` of it for evaluation. A sequence
    is a window of ``length`` tokens with the token after it. Windows are drawn anywhere in the
    training part. In the test part they are side by side, without overlap (fewer where it has no
    more). Scored: every token, also by the number of tokens read.

    Vocabulary: the characters or bytes that occur in the file, ␣ for a space, escapes for what
    cannot be seen. Splits: long_x2, long_x4 and long_x8 are longer windows of the test part ("not
    repeated"). repeated_x2 .. repeated_x8 are windows of the training length, tiled up to the same
    lengths ("repeated"): from the second tile on, copying from one tile back is right. Metric:
    share of wrong tokens.

    The file is never held in memory. Without one, the included sample.txt is read: stories
    that a grammar wrote, in which names and sayings come back after ten to thousands of characters.

    Source: the splits are those of Su's table of length extrapolation (blogs 9603, 9708), which
    tiles texts of any length.
    """

    file: Annotated[str, Field(min_length=1)] | None
    unit: Unit
    length: PositiveInt
    """Tokens that the model reads; a window has one more, which is only predicted."""
    period: PositiveInt | None
    """The number of first tokens of a window that are repeated; null: the window is unchanged."""
    test_share: Annotated[float, Field(gt=0, lt=1)]
    part: Literal["training", "test"] = "training"
    """The part that the windows are from; those of splits are from the test part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss_on != "scored":
            raise ValueError(
                f"task.loss_on={self.loss_on} has no effect on text, where all is scored: drop it"
            )
        if self.part == "test" and self.splits:
            raise ValueError("task.part=test is what splits are measured on: drop it")
        if self.period is not None and self.period > self.length:
            raise ValueError(
                f"task.period={self.period} is more than task.length={self.length}, so that "
                "nothing is repeated: lower it, or set it to null"
            )
        for name, changes in self.splits.items():
            if fixed := {"file", "unit", "test_share", "part"} & changes.keys():
                raise ValueError(f"split {name} cannot change {', '.join(sorted(fixed))}")
        room, window = self._end - self._begin, self._window
        if room < window:
            raise ValueError(
                f"a window of {window} {self.unit} does not fit the {self.part} part of "
                f"{self._text.path}, which has {room} of {self._text.length}: lower the length, "
                "change task.test_share, or give a longer text"
            )
        for name in self.evaluated() if self.part == "training" else ():
            with suppress(
                TypeError
            ):  # a key that is not a number is reported when the task is built
                self.split(name)

    @property
    def vocab(self) -> tuple[str, ...]:
        return self._text.names

    @property
    def n_tokens(self) -> int:
        return self.length

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        """n windows; of the test part at most as many as fit side by side."""
        if self.part == "training":
            starts = rng.integers(self._begin, self._end - self._window + 1, n)
        else:
            fitting = (self._end - self._begin) // self._window
            chosen = rng.choice(fitting, min(n, fitting), replace=False)
            starts = self._begin + self._window * chosen
        windows = self._text.windows(starts, self._window)
        tokens = windows[:, np.arange(self.length + 1) % self._window]
        scored = np.ones((len(starts), self.length), dtype=bool)
        return Batch(tokens[:, :-1], tokens[:, 1:], scored)

    def contents(self) -> dict[str, str]:
        return {"text": self._text.digest} | super().contents()

    def split(self, name: str) -> Self:
        if name == TRAIN:
            return self
        return replace(self, **self.splits.get(name, {}), splits={}, files={}, part="test")

    def at_length(self, length: int) -> Self:
        if length < 1:
            raise ValueError(f"a length of {length} is too short for text: give at least 1")
        period = self.period if self.period is not None and self.period < length else None
        return replace(self, length=length, period=period, splits={})

    @cached_property
    def _text(self) -> TextFile:
        path = self.file
        if path is None:
            path = str(resources.files("pe_lab.tasks") / "sample.txt")
        return read_text("task.file", path, self.unit)

    @property
    def _window(self) -> int:
        """Tokens of the text in a sequence, the last target included."""
        return self.length + 1 if self.period is None else min(self.period, self.length + 1)

    @property
    def _begin(self) -> int:
        return 0 if self.part == "training" else self._cut

    @property
    def _end(self) -> int:
        return self._cut if self.part == "training" else self._text.length

    @property
    def _cut(self) -> int:
        """The end of the training part, where the test part begins."""
        length: int = self._text.length
        return round(length * (1 - self.test_share))
