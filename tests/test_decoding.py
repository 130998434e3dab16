"""A model that continues its answers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from trainers import planned

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
