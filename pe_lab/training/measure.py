"""Measuring a model on a split: its answers, their metrics, and a breakdown of the errors."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.metrics import computed
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Bools, Ints, Task
from pe_lab.models.base import Model, ScoredPositions
from pe_lab.pe.positions import Positions
from pe_lab.training.generate import OfTokens, generate
from pe_lab.training.plan import Plan


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


@torch.inference_mode()
def generated_answers(
    model: Model,
    data: Batch,
    positions: Ints,
    of_tokens: OfTokens | None = None,
    *,
    batch_tokens: int,
    autocast: Callable[[], Any],
    poll: Callable[[], None] = lambda: None,
) -> Answers:
    """The answers that the model generates greedily, to a task whose scored answers are one run
    at the end of each row. The arguments are those of ``measure.answer`` and ``generate``; losses
    are nan.
    """
    wrong = np.zeros(data.scored.shape, dtype=bool)
    with evaluating(model):
        for rows, first, n in _same_places(data.scored):
            rows_pos = positions if len(positions) == 1 else positions[rows]
            found = []
            for part, pos in chunks(data.take(rows), rows_pos, batch_tokens, poll):
                prompt = torch.from_numpy(part.tokens[:, : first + 1]).to(model.device)
                with autocast():
                    where = pos.to(model.device)
                    answers = generate(model, prompt, where, n, of_tokens=of_tokens)
                found.append(answers.cpu().numpy() != part.targets[:, first : first + n])
            wrong[rows, first : first + n] = np.concatenate(found)
    row, position = np.nonzero(data.scored)
    flat = wrong[data.scored]
    return Answers(flat, np.full(len(flat), np.nan), row, position, {})


def _same_places(scored: Bools) -> Iterator[tuple[Ints, int, int]]:
    """Rows with the same scored places, the first of these, and their number."""
    n = scored.sum(1)
    first = scored.argmax(1)
    for start, length in np.unique(np.stack([first, n], 1), axis=0).tolist():
        rows = np.flatnonzero((first == start) & (n == length))
        assert scored[rows, start : start + length].all()
        yield rows, start, length


class Evaluator:
    """Evaluates a model on the splits of a plan.

    Args:
        sets: the evaluation set of each split.
        poll: called between batches; may raise to stop.
        batch_tokens: tokens evaluated at once; None: ``eval.batch_tokens``.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        sets: Mapping[str, Batch],
        poll: Callable[[], None] = lambda: None,
        batch_tokens: int | None = None,
    ) -> None:
        self.plan, self.model, self.sets = plan, model, sets
        self._options: dict[str, Any] = {
            "batch_tokens": batch_tokens or plan.config.eval.batch_tokens,
            "autocast": partial(model.autocast, plan.config.train.precision),
            "poll": poll,
        }

    def answers(self, split: str, n: int | None = None) -> Answers:
        """The teacher-forced answers to a split, or to its first ``n`` sequences."""
        data, positions = self._sequences(split, n)
        task = self.plan.task.split(split)
        return answer(self.model, task, data, positions, **self._options)

    def generated(self, split: str) -> Answers:
        """The answers that the model generates greedily."""
        data, positions = self._sequences(split, None)
        source = self.plan.positions
        of_tokens = source.of_tokens if source.from_tokens else None
        return generated_answers(self.model, data, positions, of_tokens, **self._options)

    def _sequences(self, split: str, n: int | None) -> tuple[Batch, Ints]:
        data = self.sets[split]
        positions = fixed_positions(self.plan.positions, split, data)
        first = slice(0, n)
        return data.take(first), positions if len(positions) == 1 else positions[first]
