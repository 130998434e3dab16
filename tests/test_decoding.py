"""A model that continues its answers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from trainers import planned

from pe_lab.core.metrics import ENDINGS, generated_metrics
from pe_lab.core.task import Batch
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train import measure
from pe_lab.train.measure import Evaluator, generate


class Successor(Model):
    """Says the next number after the last token and its position together, of 7."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(()))
        self.read: list[tuple[int, ...]] = []

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return []

    def forward(self, tokens_BT: Tensor, pos_BS: Tensor, cache: Any = None, **_: Any) -> Tensor:
        cache.append(tokens_BT)
        assert sum(t.shape[1] for t in cache) == pos_BS.shape[1]
        self.read.append(tuple(tokens_BT.shape))
        told = (tokens_BT + pos_BS[:, -tokens_BT.shape[1] :] + 1) % 7
        return torch.nn.functional.one_hot(told, 7).float()

    def unembed(self, hidden: Tensor) -> Tensor:
        return hidden

    def empty_cache(self) -> list[Tensor]:
        return []


def test_a_model_reads_what_it_has_written() -> None:
    model = Successor()
    prompt, pos = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0, 2, 3], [1, 2, 5]])
    assert generate(model, prompt, pos, 2).tolist() == [[5, 2], [0, 6]]
    assert model.read == [(2, 2), (2, 1)]


class Script(Successor):
    """Says the words of ``said_NTV``, whatever it reads."""

    def forward(self, tokens_BT: Tensor, pos_BS: Tensor, cache: Any = None, **_: Any) -> Tensor:
        after = pos_BS.shape[1]
        return self.said_NTV[:, after - tokens_BT.shape[1] : after]


def test_how_generated_answers_end() -> None:
    """An end is too early before the third answer and late after it, up to the last place."""
    made = planned("task=termination", "task.min_letters=2", "task.max_letters=2", "task.room=3")
    task = made.task.split("in_domain")
    ends = ["a b <eos> a a a", "b b <eos> a a a", "a <eos> <eos> a a a", "<eos> b <eos> a a a",
            "a b a a a <eos>", "a b a a <eos> a", "a b a a a a", "a b | | | |"]  # fmt: skip
    model, word = Script(), task.vocab.index
    said = torch.tensor([[word(one) for one in f"a b | {row}".split()] for row in ends])
    model.said_NTV = torch.nn.functional.one_hot(said, len(task.vocab)).float()
    words = ["<bos>", "a", "b", "|", "a", "b", "<eos>", "<pad>", "<pad>", "<pad>"]
    sequence = np.array([[word(one) for one in words]] * len(ends))
    scored = np.array([[3 <= place < 6 for place in range(9)]] * len(ends))
    sets = {"in_domain": Batch(sequence[:, :-1], sequence[:, 1:], scored)}
    metrics = generated_metrics(Evaluator(made, model, sets).generated("in_domain"))
    assert [metrics[name] for name in ENDINGS] == [1 / 8, 2 / 8, 2 / 8]
    assert metrics["error_generated"] == pytest.approx(7 / 24)


def test_answers_of_rows_scored_at_different_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is scored at other positions; the first row errs at its second answer, and goes
    on from what it has written."""
    pos = np.array([[0, 1, 2, 3, 4, 5], [0, 2, 4, 6, 8, 10], [0, 1, 2, 3, 4, 5]])
    tokens = np.array([[1, 1, 2, 6, 0, 0], [2, 5, 1, 0, 0, 0], [0, 1, 1, 4, 0, 0]])
    targets = np.array([[1, 2, 5, 3, 0, 0], [5, 1, 6, 0, 0, 0], [1, 1, 4, 1, 0, 0]])
    scored = np.zeros((3, 6), dtype=bool)
    scored[0, 2:4] = scored[1, 1:2] = scored[2, 2:4] = True
    monkeypatch.setattr(measure, "fixed_positions", lambda *_: pos)
    sets = {"in_domain": Batch(tokens, targets, scored)}
    answers = Evaluator(planned(), Successor(), sets, batch_tokens=6).generated("in_domain")
    # Row 0: 2 at 2 says 5, 5 at 3 says 2. Row 1: 5 at 2 says 1. Row 2: 1 says 4, 4 at 3 says 1.
    assert answers.row.tolist() == [0, 0, 1, 2, 2]
    assert answers.position.tolist() == [2, 3, 1, 2, 3]
    assert answers.wrong.tolist() == [False, True, False, False, False]
    assert np.isnan(answers.loss).all()
