"""The answers to a split, and their metrics."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from program import Here, rows, the_run, tiny
from scipy.stats import binomtest
from trainers import fit, planned, trainer

from pe_lab.core.metrics import IN_DOMAIN, compute_metrics, wilson
from pe_lab.pe.functional import widened
from pe_lab.train.batches import evaluation_set
from pe_lab.train.measure import Answers, Evaluator, fixed_positions


def test_error_and_loss_by_the_tokens_read() -> None:
    """Buckets end at powers of two: positions 0, 1, 2-3, 4-7 have read 1, 2, 3-4, 5-8 tokens."""
    row, position = (axis.ravel() for axis in np.indices((2, 6)))
    loss = np.arange(12.0)
    loss[7] = math.inf
    answers = Answers(np.arange(12) % 4 == 0, loss, row, position, {"depth": position * 0})
    found = answers.breakdown()
    assert found["length"] == {
        "1": {"error": 0.5, "loss": 3.0, "n": 2},
        "2": {"error": 0.0, "loss": None, "n": 2},
        "3-4": {"error": 0.25, "loss": 5.5, "n": 4},
        "5-8": {"error": 0.25, "loss": 7.5, "n": 4},
    }
    assert found["depth"]["0"]["n"] == 12
    json.dumps(found, allow_nan=False)


def test_wilson_is_scipys() -> None:
    for wrong, n in [(0, 1), (1, 1), (0, 50), (3, 50), (50, 50), (123, 456), (1, 100_000)]:
        ours = wilson(wrong, n)
        theirs = binomtest(wrong, n).proportion_ci(0.95, "wilson")
        assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-14)


def test_bfloat16_trains(here: Here, tmp_path: Path) -> None:
    words = ("pe=rope", "task.p_ignore=0.2", "train.steps=40")
    for precision in ("float32", "bfloat16"):
        assert (
            here(*tiny(*words, f"train.precision={precision}", f"runs_dir={precision}")).status == 0
        )
    exact, half = (rows(the_run(tmp_path / name)) for name in ("float32", "bfloat16"))
    assert exact[0]["train/loss"] != half[0]["train/loss"]
    # Eight bits of precision.
    assert half[0]["train/loss"] == pytest.approx(exact[0]["train/loss"], rel=2**-6)
    assert half[-1]["train/loss"] < 0.8 * half[0]["train/loss"]


COPY = ("task=selective_copy", "task.n_copy=3", "task.n_blank=2", "task.n_symbols=3")


def test_generated_answers_are_the_teacher_forced_until_the_first_error(tmp_path: Path) -> None:
    trained = trainer(tmp_path, *COPY, "pe=rope", "train.steps=150", "train.lr=0.01")
    fit(trained)
    forced, written = trained.evaluator.answers(IN_DOMAIN), trained.evaluator.generated(IN_DOMAIN)
    np.testing.assert_array_equal(forced.row, written.row)
    a, b = forced.wrong.reshape(32, -1), written.wrong.reshape(32, -1)
    assert 0 < a.any(1).sum() < 32
    for one, other in zip(a, b, strict=True):
        until = int(one.argmax()) + 1 if one.any() else len(one)
        np.testing.assert_array_equal(one[:until], other[:until])


def test_an_answer_that_is_no_number_is_wrong(tmp_path: Path) -> None:
    trained = trainer(tmp_path, *COPY)
    torch.nn.init.constant_(trained.model.tokens.weight, math.nan)
    answers = trained.evaluator.answers(IN_DOMAIN)
    assert (trained.evaluator.sets[IN_DOMAIN].targets[answers.row, answers.position] == 0).any()
    assert compute_metrics(answers)["error"] == 1


def test_positions_of_a_split_are_a_fixed_draw() -> None:
    source = planned("positions=randomized", "positions.max=64").positions
    data = evaluation_set(planned().task, "sparse", 4)
    one, other = (fixed_positions(source, "sparse", data) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert one.shape == (4, 15)
    assert not np.array_equal(one, fixed_positions(source, "dense", data))


def test_metrics_of_answers() -> None:
    """Four sequences with two answers each: both wrong, one wrong, none, none."""
    wrong = np.array([True, True, True, False, False, False, False, False])
    loss = np.array([3.0, 2.0, 0.5, 0.5, 1.0, 2.0, 1.0, 2.0])
    answers = Answers(wrong, loss, np.repeat([0, 4, 9, 12], 2), np.tile([1, 3], 4), {})
    low, high = wilson(3, 8)
    assert compute_metrics(answers) == {
        "error": 0.375, "error_low": low, "error_high": high, "error_seq": 0.5, "loss": 1.5,
        "n": 8, "n_seq": 4,
    }  # fmt: skip


def test_longer_splits_are_measured_with_as_many_tokens() -> None:
    made = planned()
    found = [made.sequences(split, 64) for split in (IN_DOMAIN, "long_x2", "long_x4")]
    assert found == [64, 64 * 15 // 31, 64 * 15 // 63]
    assert made.sequences("long_x4", 1) == 1


@pytest.mark.parametrize("split", [IN_DOMAIN, "sparse"])
def test_answers_do_not_depend_on_the_size_of_batches(tmp_path: Path, split: str) -> None:
    """Held against the model's logits on one sequence after another."""
    trained = trainer(tmp_path, "pe=rope", "positions=randomized", "positions.max=64")
    model, sets = trained.model, trained.evaluator.sets
    data = sets[split]
    positions = fixed_positions(trained.plan.positions, split, data)
    found = [
        Evaluator(trained.plan, model, sets, batch_tokens=tokens).answers(split, n)
        for tokens, n in ((1, None), (64, None), (10**6, None), (64, 5))
    ]
    wrong, losses = [], []
    for row, column in zip(*np.nonzero(data.scored), strict=True):
        with torch.no_grad():
            hidden = model(torch.from_numpy(data.tokens[[row]]), torch.from_numpy(positions[[row]]))
            logits, target = model.unembed(hidden)[0, column], int(data.targets[row, column])
        wrong.append(int(logits.argmax()) != target)
        losses.append(float(-logits.log_softmax(0)[target]))
    for answers in found:
        assert answers.wrong.tolist() == wrong[: answers.n]
        np.testing.assert_allclose(answers.loss, losses[: answers.n], rtol=1e-4)
    assert found[0].n == found[2].n == int(data.scored.sum())
    assert found[3].n == int(data.scored[:5].sum())


def test_the_loss_is_not_computed_in_half_precision() -> None:
    assert widened(torch.zeros(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert widened(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64
