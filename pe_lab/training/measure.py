"""Measuring a model on a split: its answers, their metrics, and a breakdown of the errors."""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.metrics import computed
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Ints, Task
from pe_lab.models.base import Model, ScoredPositions
from pe_lab.pe.positions import Positions


@dataclass(frozen=True)
class Answers:
    """Every scored answer of a split: whether it is wrong, its loss, row and position."""

    wrong: np.ndarray
    loss: np.ndarray
    row: Ints
    position: Ints
    tags: dict[str, Ints]

    @property
    def n(self) -> int:
        """How many answers were scored."""
        return len(self.wrong)

    @property
    def n_wrong(self) -> int:
        """How many of them are wrong."""
        return int(self.wrong.sum())

    @property
    def n_seq(self) -> int:
        """How many sequences they are from."""
        return len(np.unique(self.row))

    @property
    def n_seq_wrong(self) -> int:
        """How many sequences have a wrong answer."""
        return len(np.unique(self.row[self.wrong]))

    def measured(self) -> dict[str, float]:
        """Every metric of ``core.metrics`` that is computed from answers."""
        return computed(self)

    def breakdown(
        self, exact: Collection[str] = ()
    ) -> dict[str, dict[str, dict[str, float | None]]]:
        """Error and loss by the number of tokens read (``length``) and by each of the task's tags:
        name -> bucket -> error, loss (None where it is not finite) and n. Buckets are 0, 1, 2,
        3-4, 5-8, 9-16, .., of the tags in ``exact`` every value."""
        by = {"length": self.position + 1, **self.tags}
        return {name: self._by(values, name in exact) for name, values in by.items()}

    def _by(self, values: Ints, exact: bool) -> dict[str, dict[str, float | None]]:
        powers = 2 ** np.ceil(np.log2(np.maximum(values, 1)))
        upper = values if exact else np.where(values > 0, powers, 0).astype(int)
        table = {}
        for top in np.unique(upper):
            inside, bottom = upper == top, int(top) if exact else int(top) // 2 + 1
            name = f"{bottom}-{top}" if bottom < top else f"{top}"
            loss = float(self.loss[inside].mean())
            table[name] = {
                "error": float(self.wrong[inside].mean()),
                "loss": loss if math.isfinite(loss) else None,
                "n": int(inside.sum()),
            }
        return table


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode inside; the previous mode is restored."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def chunks(
    data: Batch, positions: Ints, batch_tokens: int, poll: Callable[[], None]
) -> Iterator[tuple[Batch, Tensor]]:
    """Chunks of at most batch_tokens tokens but at least one row, each with its positions; ``poll``
    is called before each."""
    size = max(1, batch_tokens // data.tokens.shape[1])
    for start in range(0, len(data), size):
        poll()
        rows = slice(start, start + size)
        pos = positions if len(positions) == 1 else positions[rows]
        yield data.take(rows), torch.from_numpy(pos)


def fixed_positions(positions: Positions, split: str, data: Batch) -> Ints:
    """The positions of a split's sequences: a fixed draw where they are random."""
    rng = generator(0, "positions", split)
    return positions.of_batch(rng, data, training=False)


@torch.inference_mode()
def answer(
    model: Model,
    task: Task,
    data: Batch,
    positions: Ints,
    *,
    batch_tokens: int,
    autocast: Callable[[], Any],
    poll: Callable[[], None] = lambda: None,
) -> Answers:
    """Teacher-forced answers to every scored position of ``data``.

    Args:
        positions: (1 or N, T) of ``data``'s sequences, or (.., T, axes).
        autocast: makes the context in which the model runs.
        poll: called between chunks; may raise to stop.
    """
    device = model.device
    wrong, losses = [], []
    with evaluating(model):
        for part, pos in chunks(data, positions, batch_tokens, poll):
            scored = ScoredPositions.of(part.scored, device)
            with autocast():
                tokens = torch.from_numpy(part.tokens).to(device)
                logits = model.unembed(model(tokens, pos.to(device), scored=scored))
            targets = torch.from_numpy(part.targets[part.scored]).to(device)
            loss = F.cross_entropy(logits.double(), targets, reduction="none")
            # argmax returns the index of a nan, which could be right by chance.
            right = task.correct(logits.float(), targets) & ~loss.isnan()
            wrong.append((~right).cpu().numpy())
            losses.append(loss.cpu().numpy())
    row, position = np.nonzero(data.scored)
    return Answers(
        np.concatenate(wrong),
        np.concatenate(losses),
        row,
        position,
        {name: tag[data.scored] for name, tag in data.tags.items()},
    )
