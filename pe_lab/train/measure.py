"""A model on a split: its answers, generated ones too, their metrics and a breakdown of the errors.

Shape letters: B rows, T tokens of the prompt, S positions, V vocabulary.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.errors import RunError
from pe_lab.core.metrics import computed
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Bools, Ints, Task
from pe_lab.models.base import Model
from pe_lab.pe.positions import Numbers, Positions
from pe_lab.train.plan import Plan

Choice = Callable[[Tensor], Tensor]
"""From logits (B, V) to one token for each row, (B, 1)."""
OfTokens = Callable[[Ints], Ints]
"""``Positions.of_tokens``."""


def greedy(logits_BV: Tensor) -> Tensor:
    """The most likely token of each row, (B, 1)."""
    return logits_BV.argmax(-1, keepdim=True)


def sample(
    logits_BV: Tensor,
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """One token for each row, sampled from softmax(logits / temperature), (B, 1).

    Args:
        generator: on the CPU, so that every device samples the same tokens.
        top_k: sample among the k most likely tokens only.
        top_p: sample among the smallest set of most likely tokens that reaches this probability
            (nucleus sampling, Holtzman 2020), within the ``top_k``.

    Raises:
        RunError: a logit is not finite.
    """
    ordered_BV, token_BV = logits_BV.double().cpu().sort(-1, descending=True)
    if not ordered_BV.isfinite().all():
        raise RunError("the model's logits are not all finite: no token can be drawn")
    # Relative to the largest, no temperature makes a logit infinite.
    cooled_BV = (ordered_BV - ordered_BV[:, :1]) / max(temperature, sys.float_info.min)
    p_BV = cooled_BV[:, :top_k].softmax(-1)
    if top_p is not None:
        likelier_BV = p_BV.cumsum(-1) - p_BV
        # The most likely token stays, however small top_p.
        likelier_BV[:, 0] = 0
        p_BV = p_BV * (likelier_BV < top_p)
    place_B1 = torch.multinomial(p_BV, 1, generator=generator)
    return token_BV.gather(-1, place_B1).to(logits_BV.device)


@torch.inference_mode()
def generate(
    model: Model,
    tokens_BT: Tensor,
    pos_BS: Tensor,
    n: int,
    choice: Choice = greedy,
    of_tokens: OfTokens | None = None,
    end: int | None = None,
) -> Tensor:
    """n tokens after the prompt ``tokens_BT``, each selected by ``choice``; (B, n).

    Args:
        pos_BS: positions of the prompt and of the first n - 1 generated tokens.
        of_tokens: the positions of all tokens so far where they follow from the tokens, and
            ``pos_BS`` knows those of the prompt only.
        end: a token after which a row is complete: fewer than n tokens where all rows are.
    """
    cache = model.empty_cache()
    answers: list[Tensor] = []
    read = tokens_BT.shape[1]

    def positions() -> Tensor:
        if of_tokens is not None and answers:
            found = of_tokens(torch.cat((tokens_BT, *answers), 1).cpu().numpy())
            return torch.from_numpy(found).to(pos_BS.device)
        return pos_BS[:, :read]

    hidden = model(tokens_BT, positions(), cache)
    while True:
        answers.append(choice(model.unembed(hidden[:, -1])))
        if len(answers) == n or (
            end is not None and bool((torch.cat(answers, 1) == end).any(1).all())
        ):
            return torch.cat(answers, 1)
        read += 1
        hidden = model(answers[-1], positions(), cache)


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
        return len(self.wrong)

    @property
    def n_wrong(self) -> int:
        return int(self.wrong.sum())

    @property
    def n_seq(self) -> int:
        return len(np.unique(self.row))

    @property
    def n_seq_wrong(self) -> int:
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
    data: Batch, positions: Numbers, batch_tokens: int, poll: Callable[[], None]
) -> Iterator[tuple[Batch, Tensor]]:
    """Chunks of at most batch_tokens tokens but at least one row, each with its positions; ``poll``
    is called before each."""
    size = max(1, batch_tokens // data.tokens.shape[1])
    for start in range(0, len(data), size):
        poll()
        rows = slice(start, start + size)
        pos = positions if len(positions) == 1 else positions[rows]
        yield data.take(rows), torch.from_numpy(pos)


def fixed_positions(positions: Positions, split: str, data: Batch) -> Numbers:
    """The positions of a split's sequences: a fixed draw where they are random."""
    rng = generator(0, "positions", split)
    return positions.of_batch(rng, data, training=False)


@torch.inference_mode()
def answer(
    model: Model,
    task: Task,
    data: Batch,
    positions: Numbers,
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
            scored = torch.from_numpy(np.flatnonzero(part.scored)).to(device)
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
    positions: Numbers,
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

    def _sequences(self, split: str, n: int | None) -> tuple[Batch, Numbers]:
        data = self.sets[split]
        positions = fixed_positions(self.plan.positions, split, data)
        first = slice(0, n)
        return data.take(first), positions if len(positions) == 1 else positions[first]
