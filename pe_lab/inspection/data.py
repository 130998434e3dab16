"""The inspection of one sequence: the model's answers and the maps of every attention head."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Map = npt.NDArray[np.float32]

STANDARD_MAPS = ("attention", "position score")
"""The maps that every encoding has; all others are quantities of the encoding."""


@dataclass(frozen=True)
class Answer:
    """A scored position: the target and the model's prediction, each with its probability.

    Args:
        sources: the positions of the tokens that hold the answer; empty where the task does not
            say (``Task.sources``).
    """

    position: int
    target: str
    target_probability: float
    prediction: str
    probability: float
    correct: bool
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Head:
    """An attention head and its maps.

    Args:
        maps: name -> (queries, T): ``attention`` weights, ``position score`` where the encoding
            changes the logits (see trace.LayerTrace), and quantities of the encoding (``gate``
            and ``position`` of CoPE). 0 where a query does not see a key.
        score: what heads are ranked by, see ``Inspection``.
    """

    layer: int
    head: int
    maps: dict[str, Map]
    score: float

    @property
    def name(self) -> str:
        return f"layer {self.layer} head {self.head}"

    @property
    def default_map(self) -> str:
        """The first quantity of the encoding if it has any, else ``attention``."""
        return next((name for name in self.maps if name not in STANDARD_MAPS), "attention")


@dataclass(frozen=True)
class Source:
    """Where a sequence comes from: the run's folder, its task, encoding and seed, and the split."""

    path: Path
    task: str
    pe: str
    seed: int
    split: str


@dataclass(frozen=True)
class Inspection(Source):
    """One sequence of a split: the model's answers and the maps of every head.

    ``queries`` are the positions of the rows of the maps. ``heads`` are sorted by their score,
    highest first. If the encoding has its quantities, the score is the standard deviation
    between tokens of the mean of ``ranked_by``, over the keys visible to scored queries; otherwise
    it is the maximum attention weight, averaged over scored queries.
    """

    sample: int
    tokens: list[str]
    answers: list[Answer]
    queries: list[int]
    heads: list[Head]
    ranked_by: str

    @property
    def heading(self) -> str:
        run = f"{self.task}, {self.pe}, seed {self.seed}"
        return f"{run}: {self.split}, sequence {self.sample}"

    @property
    def scored_rows(self) -> list[int]:
        """Rows of the maps whose query is scored; all rows if none is."""
        scored = {answer.position for answer in self.answers}
        rows = [row for row, query in enumerate(self.queries) if query in scored]
        return rows or list(range(len(self.queries)))

    @property
    def summary(self) -> str:
        """Two sentences on the answers and the first head."""
        right = sum(answer.correct for answer in self.answers)
        first = self.heads[0]
        score = f"{right} of {len(self.answers)} scored answers are right. "
        if self.ranked_by == "attention":
            return score + (
                "Heads are ranked by their maximum attention weight at scored queries: "
                f"{first.name} comes first, {first.score:.2f} on average."
            )
        means = [
            f"{token} {mean:.2f}" for token, mean in self.token_means(first, self.ranked_by).items()
        ]
        shown = means if len(means) <= 12 else [*means[:6], "..", *means[-6:]]
        return score + (
            f"Heads are ranked by how much their {self.ranked_by} differs between tokens: "
            f"{first.name} comes first, with a mean of {', '.join(shown)}."
        )

    def token_means(self, head: Head, name: str) -> dict[str, float]:
        """The mean of a map for each token, over the keys visible to scored queries, highest
        first."""
        tokens, means, _ = token_means(head.maps[name], self.queries, self.scored_rows, self.tokens)
        order = np.argsort(-means, kind="stable")
        return {tokens[n]: float(means[n]) for n in order}


def token_means(
    values: Map, queries: Sequence[int], rows: Sequence[int], tokens: Sequence[str]
) -> tuple[list[str], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Each distinct token, the mean of its visible keys in these rows, and its share of them."""
    distinct, index = np.unique(np.array(tokens, dtype=object), return_inverse=True)
    one_hot = index[:, None] == np.arange(len(distinct))
    visible = np.arange(len(tokens)) <= np.array(queries)[list(rows)][:, None]
    counts = (visible @ one_hot.astype(np.float64)).sum(0)
    sums = (values[list(rows)].astype(np.float64) @ one_hot).sum(0)
    found = counts > 0
    means, shares = sums[found] / counts[found], counts[found] / counts.sum()
    return [str(token) for token in distinct[found]], means, shares


def full_scale(values: Map, name: str = "") -> float:
    """The value with the deepest shade: 1 for attention and other shares, else the largest
    magnitude."""
    finite = np.nan_to_num(values)
    largest = float(np.abs(finite).max())
    is_share = name == "attention" or (finite.min() >= 0 and 0.2 < largest <= 1.001)
    return 1.0 if is_share else largest or 1.0
