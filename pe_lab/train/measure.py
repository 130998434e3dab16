"""Measures a model on a split: its answers, their metrics and a breakdown of the errors.

Shape letters: B rows, T tokens of the prompt, S positions, V vocabulary.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Bools, Ints
from pe_lab.models.base import Model
from pe_lab.pe.positions import Numbers, Positions
from pe_lab.train.plan import Plan


@torch.inference_mode()
def generate(
    model: Model,
    tokens_BT: Tensor,
    pos_BS: Tensor,
    n: int,
    of_tokens: Callable[[Ints], Ints] | None = None,
) -> Tensor:
    """Return the n most likely tokens after the prompt ``tokens_BT``, one after the other; (B, n).

    Args:
        pos_BS: positions of the prompt and of the first n - 1 generated tokens.
        of_tokens: the positions of all tokens so far where they follow from the tokens, and
            ``pos_BS`` knows those of the prompt only.
    """
    cache, read_BS = model.empty_cache(), tokens_BT
    new_BT = tokens_BT
    for _ in range(n):
        pos = pos_BS[:, : read_BS.shape[1]]
        if of_tokens is not None and read_BS is not tokens_BT:
            pos = torch.from_numpy(of_tokens(read_BS.cpu().numpy())).to(pos_BS.device)
        new_BT = model.unembed(model(new_BT, pos, cache)[:, -1]).argmax(-1, keepdim=True)
        read_BS = torch.cat((read_BS, new_BT), 1)
    return read_BS[:, tokens_BT.shape[1] :]


@dataclass(frozen=True)
class Answers:
    """The scored answers of a split: for each, whether it is wrong, its loss, row and position.

    Args:
        late: of generated answers of a task with an ``end``, by how many tokens each ends too
            late; negative: too early; infinite: it does not end.
    """

    wrong: np.ndarray
    loss: np.ndarray
    row: Ints
    position: Ints
    tags: dict[str, Ints]
    late: np.ndarray | None = None

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


def fixed_positions(positions: Positions, split: str, data: Batch) -> Numbers:
    """Return the positions of a split's sequences. Random positions are drawn from a fixed
    stream."""
    return positions.of_batch(generator(0, "positions", split), data, training=False)


class Evaluator:
    """Evaluates a model on the splits of a plan. It leaves the model in evaluation mode.

    Args:
        sets: the evaluation set of each split.
        poll: is called between batches, and may raise to stop.
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
        self.plan, self.model, self.sets, self.poll = plan, model, sets, poll
        self.batch_tokens = batch_tokens or plan.config.eval.batch_tokens

    @torch.inference_mode()
    def answers(self, split: str, n: int | None = None) -> Answers:
        """Return the teacher-forced answers to every scored position of a split, or of its first
        ``n`` sequences."""
        data, task = self.sets[split], self.plan.task.split(split)
        positions = fixed_positions(self.plan.positions, split, data)[:n]
        data = data.take(slice(0, n))
        wrong, losses = [], []
        for part, pos, autocast in self._chunks(data, positions):
            scored = torch.from_numpy(np.flatnonzero(part.scored)).to(pos.device)
            with autocast:
                tokens = torch.from_numpy(part.tokens).to(pos.device)
                logits = self.model.unembed(self.model(tokens, pos, scored=scored))
            targets = torch.from_numpy(part.targets[part.scored]).to(pos.device)
            loss = F.cross_entropy(logits.double(), targets, reduction="none")
            # argmax returns the index of a nan, which could be right by chance.
            right = task.correct(logits.float(), targets) & ~loss.isnan()
            wrong.append((~right).cpu().numpy())
            losses.append(loss.cpu().numpy())
        tags = {name: tag[data.scored] for name, tag in data.tags.items()}
        row, position = np.nonzero(data.scored)
        return Answers(np.concatenate(wrong), np.concatenate(losses), row, position, tags)

    @torch.inference_mode()
    def generated(self, split: str) -> Answers:
        """Return the answers that the model generates greedily, to a task whose scored answers are
        one run at the end of each row; losses are nan."""
        data, source = self.sets[split], self.plan.positions
        positions = fixed_positions(source, split, data)
        end = None if self.plan.task.end is None else self.plan.task.vocab.index(self.plan.task.end)
        late = None if end is None else np.zeros(len(data))
        wrong = np.zeros(data.scored.shape, dtype=bool)
        for rows, first, n in _same_places(data.scored):
            most = n if end is None else data.tokens.shape[1] - first
            of_rows = positions if len(positions) == 1 else positions[rows]
            answers = []
            for part, pos, autocast in self._chunks(data.take(rows), of_rows):
                prompt = torch.from_numpy(part.tokens[:, : first + 1]).to(pos.device)
                with autocast:
                    answers.append(
                        generate(self.model, prompt, pos, most, source.of_tokens).cpu().numpy()
                    )
            place, written = slice(first, first + n), np.concatenate(answers)
            wrong[rows, place] = written[:, :n] != data.targets[rows, place]
            if late is not None:
                ends = written == end
                late[rows] = np.where(ends.any(1), ends.argmax(1) - (n - 1), math.inf)
        row, position = np.nonzero(data.scored)
        return Answers(wrong[data.scored], np.full(len(row), np.nan), row, position, {}, late)

    def _chunks(
        self, data: Batch, positions: Numbers
    ) -> Iterator[tuple[Batch, Tensor, torch.autocast]]:
        """Chunks of at most ``batch_tokens`` tokens but at least one row, each with its positions
        and the context in which the model runs."""
        self.model.eval()
        size = max(1, self.batch_tokens // data.tokens.shape[1])
        for start in range(0, len(data), size):
            self.poll()
            rows = slice(start, start + size)
            pos = torch.from_numpy(positions if len(positions) == 1 else positions[rows])
            autocast = self.model.autocast(self.plan.config.train.precision)
            yield data.take(rows), pos.to(self.model.device), autocast


def _same_places(scored: Bools) -> Iterator[tuple[Ints, int, int]]:
    """Rows with the same scored places, the first of these, and their number."""
    n, first = scored.sum(1), scored.argmax(1)
    for start, length in np.unique(np.stack([first, n], 1), axis=0).tolist():
        yield np.flatnonzero((first == start) & (n == length)), start, length
