"""The trainer, held against a training loop in plain PyTorch, and its promises about masks,
parts, evaluation, early stopping and checkpoints."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trainers import fit, trainer

from pe_lab.core.errors import RunError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.store import checkpoint
from pe_lab.train.batches import TrainData
from pe_lab.train.trainer import Trainer

NAMES = (
    (r"attention\.qkv\.", "self_attn.in_proj_"),
    (r"attention\.out\.", "self_attn.out_proj."),
    (r"ff\.up\.", "linear1."),
    (r"ff\.out\.", "linear2."),
    (r"norm_attention\.", "norm1."),
    (r"norm_ff\.", "norm2."),
)
"""The names of our parameters in ``nn.TransformerEncoderLayer``."""


def theirs(name: str) -> str:
    for ours, other in NAMES:
        name = re.sub(ours, other, name)
    return name


class Plain(nn.Module):
    """A decoder of PyTorch's own layers."""

    def __init__(self, n_tokens: int, n_layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(n_tokens, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = torch.full((length, length), -math.inf).triu(1)
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


LR, CLIP, DECAY = 0.02, 0.4, 0.1
# Warm-up 1/2 and 2/2, then three steps from 1 towards 0.
RATES = {
    "cosine": [LR * share for share in (0.5, 1, 1, 0.75, 0.25)],
    "linear": [LR * share for share in (0.5, 1, 1, 2 / 3, 1 / 3)],
}


@pytest.mark.parametrize(
    ("kind", "cls", "schedule", "fast", "clip"),
    [
        ("adamw", torch.optim.AdamW, "cosine", "true", CLIP),
        ("adamw", torch.optim.AdamW, "cosine", "false", CLIP),
        ("adam", torch.optim.Adam, "linear", "true", CLIP),
        ("adam", torch.optim.Adam, "cosine", "true", 100.0),
    ],
)
def test_training_is_a_plain_pytorch_loop(
    tmp_path: Path,
    float64: None,
    kind: str,
    cls: type[torch.optim.Optimizer],
    schedule: str,
    fast: str,
    clip: float,
) -> None:
    """Where ``clip`` is large, no gradient is scaled. A width of 18 fills no cache lines."""
    trained = trainer(
        tmp_path, f"train.optimizer={kind}", f"train.schedule={schedule}", f"train.lr={LR}",
        "train.steps=5", "train.warmup=2", f"train.clip={clip}", f"train.weight_decay={DECAY}",
        "train.betas=[0.8,0.95]", "train.accumulate=2", "train.batch_size=7", "train.log_every=2",
        "task.p_ignore=0.6", "model.n_layers=2", "eval.every=100", "seed=3", f"train.fast={fast}",
        "model.d_model=18",
    )  # fmt: skip
    plain = Plain(len(trained.plan.task.vocab), n_layers=2, width=18, heads=2)
    plain.load_state_dict({theirs(k): v for k, v in trained.model.state_dict().items()})
    matrices, vectors = (
        [p for p in plain.parameters() if (p.dim() >= 2) == wide] for wide in (True, False)
    )
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = cls(groups, betas=(0.8, 0.95))
    data = TrainData(trained.plan.task, 3, 7)
    losses: list[float] = []
    shown: list[float] = []

    def step_of_both(step: int, logged: float) -> None:
        shown.append(logged)
        batch = data.batch(step - 1)
        # Parts of 4 and 3 rows, with different numbers of scored positions.
        parts = batch.scored[:4].sum(), batch.scored[4:].sum()
        assert parts[0] != parts[1]
        assert 0 < sum(parts) < batch.scored.size / 2
        targets = torch.from_numpy(batch.targets).masked_fill(~torch.from_numpy(batch.scored), -1)
        logits = plain(torch.from_numpy(batch.tokens))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        assert (nn.utils.clip_grad_norm_(plain.parameters(), clip) > clip) == (clip == CLIP)
        for group in optimizer.param_groups:
            group["lr"] = RATES[schedule][step - 1]
        optimizer.step()
        ours = {theirs(k): v for k, v in trained.model.state_dict().items()}
        for name, weight in plain.state_dict().items():
            torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-9, msg=f"{step} {name}")

    log: list[dict[str, Any]] = []
    trained.fit(log.append, step_of_both)
    assert len(losses) == 5
    assert [row["step"] for row in log] == [2, 4, 5]
    assert [row["train/lr"] for row in log] == pytest.approx(
        [RATES[schedule][step] for step in (1, 3, 4)], rel=1e-12
    )
    means = [sum(losses[:2]) / 2, sum(losses[2:4]) / 2, losses[4]]
    assert [row["train/loss"] for row in log] == pytest.approx(means, rel=1e-10)
    expected = [math.nan, means[0], means[0], means[1], means[2]]
    assert shown == pytest.approx(expected, rel=1e-10, nan_ok=True)


def hidden_states(tmp_path: Path, *words: str) -> list[Tensor]:
    """The last hidden states of both parts of three steps, which see one and the same sequence."""
    trained = trainer(
        tmp_path, "task.train_sequences=1", "train.batch_size=2", "train.accumulate=2",
        "train.lr=1e-30", "train.weight_decay=0", *words,
    )  # fmt: skip
    seen: list[Tensor] = []
    trained.model.register_forward_hook(lambda _, __, out: seen.append(out.detach().flatten(0, -2)))
    for _ in range(3):
        trained.train_step()
    return seen


# With loss_on=all the model computes every position, else the scored ones only.
@pytest.mark.parametrize("loss_on", ["scored", "all"])
def test_each_step_and_part_has_another_dropout_mask(tmp_path: Path, loss_on: str) -> None:
    words = f"task.loss_on={loss_on}", "model.dropout=0.5"
    seen = hidden_states(tmp_path, *words)
    assert len(seen) == 6
    for number, hidden in enumerate(seen):
        assert not any(torch.equal(hidden, other) for other in seen[:number])
    again = hidden_states(tmp_path, *words)
    assert all(torch.equal(one, same) for one, same in zip(seen, again, strict=True))


def weights(trained: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trained.model.parameters()]


def test_evaluation_leaves_training_as_it_was(tmp_path: Path) -> None:
    words = "model.dropout=0.5", "train.steps=4", "train.checkpoint_every=100"
    ends = []
    for every in (1, 100):
        trained = trainer(tmp_path, *words, f"eval.every={every}")
        modes: list[tuple[bool, bool]] = []
        trained.model.register_forward_hook(
            lambda model, *_, modes=modes: modes.append((model.training, torch.is_grad_enabled()))
        )
        rows = fit(trained)
        assert modes.count((True, True)) == 4
        assert set(modes) <= {(True, True), (False, False)}
        assert ((False, False) in modes) == (every == 1)
        assert trained.model.training
        ends.append((weights(trained), [row["train/loss"] for row in rows if "train/loss" in row]))
    (evaluated, losses), (plain, same_losses) = ends
    assert all(torch.equal(one, same) for one, same in zip(evaluated, plain, strict=True))
    assert losses == same_losses


@pytest.mark.parametrize(
    "positions", [("positions=sequential",), ("positions=randomized", "positions.max=64")]
)
def test_accumulated_parts_are_one_batch(
    tmp_path: Path, float64: None, positions: tuple[str, ...]
) -> None:
    words = ("pe=rope", "train.batch_size=7", "task.p_ignore=0.5", "train.clip=null", *positions)
    whole, parts = trainer(tmp_path, *words), trainer(tmp_path, *words, "train.accumulate=3")
    for trained in (whole, parts):
        for _ in range(3):
            trained.train_step()
    torch.testing.assert_close(whole.loss_sum, parts.loss_sum, rtol=1e-12, atol=0)
    for one, other in zip(weights(whole), weights(parts), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "positions", [("positions=randomized", "positions.max=64"), ("positions=floats",)]
)
def test_each_step_has_other_random_positions(tmp_path: Path, positions: tuple[str, ...]) -> None:
    trained = trainer(tmp_path, "pe=rope", *positions, "train.accumulate=2")
    drawn = []
    for step in (0, 1, 0):
        trained.step = step
        drawn.append(torch.cat([pos for _, _, pos in trained.next_microbatches()]))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert len({tuple(row) for row in drawn[0].tolist()}) == 8


def decided(
    trained: Trainer, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, list[bool]]
) -> None:
    """Answers of each split that are all wrong, or all right, in one evaluation after another."""
    answers = trained.evaluator.answers
    turns = {split: iter(turn) for split, turn in wrong.items()}

    def answer(split: str, n: int | None = None) -> Any:
        real = answers(split, n)
        real.wrong[:] = next(turns[split])
        return real

    monkeypatch.setattr(trained.evaluator, "answers", answer)


@pytest.mark.parametrize(
    ("in_domain", "ood", "stop_below", "stopped"),
    [
        ("..", "xx", 0.1, 6),
        ("..", "xx", 0, 6),
        # Out-of-domain splits stop nothing, and the evaluations must be in a row.
        ("xxxx", "....", 0.1, 13),
        (".x..", "....", 0.1, 12),
        (".x.x", "....", 0.1, 13),
    ],
)
def test_early_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_domain: str, ood: str, stop_below: float,
    stopped: int,
) -> None:  # fmt: skip
    trained = trainer(
        tmp_path, f"train.stop_below={stop_below}", "train.patience=2", "eval.every=3",
        "train.steps=13", "train.log_every=4",
    )  # fmt: skip
    turns = {s: in_domain if s == IN_DOMAIN else ood for s in trained.plan.splits}
    decided(trained, monkeypatch, {s: [sign == "x" for sign in turn] for s, turn in turns.items()})
    rows = fit(trained)
    assert trained.step == stopped
    evaluated = [row["step"] for row in rows if "in_domain/error" in row]
    assert evaluated == [3, 6, 9, 12][: stopped // 3]
    # The last steps are logged wherever training stops.
    assert max(row["step"] for row in rows if "train/loss" in row) == stopped


def test_a_checkpoint_restores_the_run(tmp_path: Path) -> None:
    """Weights, the optimizer, the sums between two log rows, and the count for early stopping."""
    words = (
        "pe=learned", "model.dropout=0.2", "train.log_every=4", "train.checkpoint_every=5",
        "train.stop_below=1", "train.patience=3", "eval.every=4", "train.steps=20",
    )  # fmt: skip
    whole = trainer(tmp_path / "whole", *words)
    expected = fit(whole)
    assert whole.step == 12

    first = trainer(tmp_path, *words)
    first.get_interrupt = lambda: KeyboardInterrupt() if first.step == 7 else None
    log: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        first.fit(log.append, lambda step, loss: None)
    second = trainer(tmp_path, *words)
    assert second.resume()
    assert second.step == 7
    second.fit(log.append, lambda step, loss: None)
    timeless = [
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
        for rows in (log, expected)
    ]
    assert timeless[0] == timeless[1]
    for one, same in zip(weights(second), weights(whole), strict=True):
        assert torch.equal(one, same)
    # All is done: nothing is trained, evaluated or logged again.
    third = trainer(tmp_path, *words)
    assert third.resume()
    assert fit(third) == []
    assert third.step == 12
    assert torch.equal(checkpoint.load(second.folder.checkpoint)["rng"], torch.get_rng_state())
    assert sorted(path.name for path in second.folder.path.iterdir()) == [
        "checkpoint.pt", "metrics.jsonl", "status.json",
    ]  # fmt: skip
    assert not trainer(tmp_path / "empty", *words).resume()


@pytest.mark.parametrize("what", ["the loss", "its gradient"])
def test_what_is_not_finite_changes_no_weight(tmp_path: Path, what: str) -> None:
    trained = trainer(tmp_path)
    head, before = trained.model.head.weight, weights(trained)
    if what == "the loss":
        with torch.no_grad():
            head[0, 0] = math.nan
    else:
        head.register_hook(lambda grad: grad * math.inf)
    number = r"\(nan\)" if what == "the loss" else r"\((?:inf|nan)\)"
    with pytest.raises(RunError, match=rf"{what} {number}.* is not finite at step 1 "):
        trained.train_step()
    assert trained.step == 0
    for p, same in zip(trained.model.parameters(), before, strict=True):
        assert p is head or torch.equal(p, same)
