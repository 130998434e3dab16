"""Batches for training and evaluation sets: functions of their seed and number."""

import hashlib

import numpy as np
import pytest
import torch
from trainers import planned

from pe_lab.core.task import Batch
from pe_lab.tasks.flipflop import READ, FlipFlop
from pe_lab.train.batches import TrainData, evaluation_set


def task(**changes: object) -> FlipFlop:
    keys = {"length": 64, "p_ignore": 0.5, "splits": {"long": {"length": 128}, "same": {}}}
    return FlipFlop(**{**keys, **changes})


def digest(batch: Batch) -> str:
    content = batch.tokens.tobytes() + batch.targets.tobytes() + batch.scored.tobytes()
    return hashlib.sha256(content).hexdigest()


def rows(batch: Batch) -> list[str]:
    return [digest(batch.take(slice(row, row + 1))) for row in range(len(batch))]


def test_a_batch_depends_on_its_seed_and_number_alone() -> None:
    forth, back = TrainData(task(), 3, 8), TrainData(task(), 3, 8)
    ahead = [digest(forth.batch(i)) for i in range(40)]
    assert [digest(back.batch(i)) for i in reversed(range(40))] == ahead[::-1]
    # No sequence comes twice, neither among batches drawn together nor among others.
    assert len({row for i in range(40) for row in rows(forth.batch(i))}) == 40 * 8
    assert digest(TrainData(task(), 4, 8).batch(0)) not in ahead


@pytest.mark.parametrize(("size", "batch_size"), [(10, 4), (10, 10), (3, 8)])
def test_each_epoch_of_a_finite_set_is_another_permutation(size: int, batch_size: int) -> None:
    data = TrainData(task(train_sequences=size), 0, batch_size)
    batches = [rows(data.batch(i)) for i in range(2 * size)]
    stream = [row for batch in batches for row in batch]
    everything = rows(data.finite.take(np.arange(size)))
    epochs = [stream[i : i + size] for i in range(0, 5 * size, size)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(everything)] * 5
    assert len(set(map(tuple, epochs))) > 1
    assert epochs != [everything] * 5
    resumed = TrainData(task(train_sequences=size), 0, batch_size)
    assert [rows(resumed.batch(i)) for i in (2 * size - 1, 1)] == [batches[-1], batches[1]]
    assert sorted(rows(TrainData(task(train_sequences=size), 1, size).batch(0))) != sorted(
        everything
    )


def test_evaluation_sets_depend_on_their_split_alone() -> None:
    sets = {split: evaluation_set(task(), split, 16) for split in task().evaluated()}
    assert [batch.tokens.shape[1] for batch in sets.values()] == [63, 127, 63]
    trained = TrainData(task(), 0, 16).batch(0)
    drawn = [row for batch in (*sets.values(), trained) for row in rows(batch)]
    assert len(set(drawn)) == len(drawn)
    again = task(train_sequences=5)
    assert all(digest(evaluation_set(again, s, 16)) == digest(b) for s, b in sets.items())


def test_encodings_of_one_seed_share_batches_and_trunk() -> None:
    batches, trunks = [], []
    for pe in ("none", "learned", "rope", "shaw"):
        made = planned(f"pe={pe}", "seed=5")
        batches.append([TrainData(made.task, 5, 8).batch(i).tokens for i in (0, 15, 16, 40)])
        weights = made.model().state_dict()
        trunks.append({k: v for k, v in weights.items() if ".encoding." not in k})
    for other in trunks[1:]:
        assert other.keys() == trunks[0].keys()
        assert all(torch.equal(other[key], trunks[0][key]) for key in other)
    for other in batches[1:]:
        np.testing.assert_array_equal(other, batches[0])


def test_loss_on_scored_or_all() -> None:
    scored, everywhere = planned().task, planned("task.loss_on=all").task
    batch = TrainData(scored, 0, 8).batch(0)
    np.testing.assert_array_equal(batch.loss_mask(scored.loss_on), batch.tokens == READ)
    assert batch.loss_mask(everywhere.loss_on).all()
