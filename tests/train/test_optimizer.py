"""The learning rate of each step, and what Adam refuses (its steps: test_trainer.py)."""

import math

import pytest
from trainers import planned

from pe_lab.train.optimizer import Adam, learning_rate


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # warm-up 1/2 and 2/2, then from 1 towards 0 in four steps
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ("constant", [0.5, 1, 1, 1, 1, 1]),
    ],
)
def test_learning_rate(schedule: str, expected: list[float]) -> None:
    words = "train.steps=6", "train.lr=0.01", f"train.schedule={schedule}"
    cfg = planned(*words, "train.warmup=2").config.train
    rates = [learning_rate(cfg, step) / 0.01 for step in range(6)]
    assert rates == pytest.approx(expected, abs=1e-12)
    assert learning_rate(planned(*words, "train.warmup=0").config.train, 0) == 0.01


def test_the_optimizer_of_another_model_is_refused() -> None:
    def adam(*words: str) -> Adam:
        plan = planned(*words)
        return Adam(plan.config.train, plan.model().parameters())

    state = adam().state
    for words in (("model.d_model=32",), ("model.n_layers=2",)):
        with pytest.raises(RuntimeError, match="size of tensor"):
            adam(*words).load_state(state)
