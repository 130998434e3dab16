"""The learning rate of each step, and the optimizers: torch's own, on flat vectors."""

import math

import pytest
import torch
from torch import nn
from trainers import grouped, planned

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


@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_optimizer_is_torchs(kind: str) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(7, 13), nn.LayerNorm(13), nn.Linear(13, 5)).double()

    ours, theirs = model(), model()
    words = f"train.optimizer={kind}", "train.betas=[0.9,0.98]", "train.weight_decay=0.1"
    adam = Adam(planned(*words, "train.clip=20").config.train, ours.parameters())
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}
    other = kinds[kind](grouped(theirs, 0.1), lr=0.01, betas=(0.9, 0.98))
    for step in range(20):
        x = torch.randn(4, 7, dtype=torch.float64)
        for net in (ours, theirs):
            net(x * step).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 20.0)
        torch.testing.assert_close(adam.clip(), norm)
        adam.step(0.01)
        other.step()
        other.zero_grad()
    for one, same in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, same, rtol=1e-12, atol=1e-14)


def test_the_optimizer_of_another_model_is_refused() -> None:
    def adam(*words: str) -> Adam:
        plan = planned(*words)
        return Adam(plan.config.train, plan.model().parameters())

    state = adam().state
    for words in (("model.d_model=32",), ("model.n_layers=2",)):
        with pytest.raises(RuntimeError, match="size of tensor"):
            adam(*words).load_state(state)
