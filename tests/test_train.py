"""The trainer's parts, and the promises about seeds, streams and identities."""

import copy
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from program import Here, rows, summary, the_run, tiny
from scipy.stats import binomtest
from torch import nn

from pe_lab.cli.train import arguments
from pe_lab.common.errors import RunError
from pe_lab.config.check import check
from pe_lab.config.compose import compose
from pe_lab.config.schema import TrainConfig, register_resolvers, validated
from pe_lab.config.schema import plain as dumped
from pe_lab.core.metrics import IN_DOMAIN, wilson
from pe_lab.core.rng import generator
from pe_lab.kernels.apply import backends
from pe_lab.pe.positions import Randomized
from pe_lab.store import checkpoint
from pe_lab.store.metrics_log import MetricsLog
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import EXCLUDED, excluded, identity
from pe_lab.tasks.flipflop import READ
from pe_lab.training.batches import TrainData, evaluation_set
from pe_lab.training.measure import fixed_positions
from pe_lab.training.optimizer import Adam, AdamW
from pe_lab.training.plan import Plan, plan
from pe_lab.training.schedule import learning_rate
from pe_lab.training.trainer import Trainer


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pe-lab"])


def resolved(*words: str) -> dict[str, Any]:
    """The configuration that these words make, as the run's identity is taken of it."""
    register_resolvers()
    (cfg,) = compose(arguments(tiny(*words)))
    content = OmegaConf.to_container(cfg, resolve=False)
    del content["hydra"]
    return OmegaConf.to_container(OmegaConf.create(content), resolve=True)


def planned(*words: str) -> Plan:
    return plan(check(resolved(*words), {"task": "flipflop", "pe": "none"}))


def trainer(tmp_path: Path, *words: str) -> Trainer:
    made = planned(*words)
    sets = {split: evaluation_set(made.task, split, 32) for split in made.splits}
    folder = RunFolder(tmp_path / "runs" / "seed0-00000000")
    folder.path.mkdir(parents=True, exist_ok=True)
    return Trainer(made, torch.device("cpu"), folder, sets, lambda: None)


def train_config(**changes: Any) -> TrainConfig:
    content = resolved()
    return validated({**content, "train": {**content["train"], **changes}}).train


def fit(trained: Trainer) -> list[dict[str, Any]]:
    with MetricsLog(trained.folder.metrics, 0) as log:
        trained.fit(log, lambda step, loss: None)
    return rows(trained.folder.path)


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
    cfg = train_config(steps=6, warmup=2, lr=0.01, schedule=schedule)
    rates = [learning_rate(cfg, step) / 0.01 for step in range(6)]
    assert rates == pytest.approx(expected, abs=1e-12)
    assert learning_rate(train_config(steps=6, warmup=0, lr=0.01), 0) == 0.01


def test_weight_decay_is_on_matrices_only() -> None:
    model = planned("pe=learned").model()
    before = [p.clone() for p in model.parameters()]
    # No gradient: only the decay moves a parameter.
    AdamW(model.parameters(), (0.9, 0.999), weight_decay=0.3).step(0.1)
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new, old * 0.97 if old.dim() >= 2 else old)


@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_optimizer_is_torchs(kind: str) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(7, 13), nn.LayerNorm(13), nn.Linear(13, 5)).double()

    ours, theirs = model(), model()
    cls = {"adamw": AdamW, "adam": Adam}[kind]
    adam = cls(ours.parameters(), (0.9, 0.98), weight_decay=0.1)
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}
    other = kinds[kind](groups, lr=0.01, betas=(0.9, 0.98))
    for step in range(20):
        x = torch.randn(4, 7, dtype=torch.float64)
        for net in (ours, theirs):
            net(x * step).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 20.0)
        torch.testing.assert_close(adam.clip(20.0), norm)
        adam.step(0.01)
        other.step()
        adam.zero_grad()
        other.zero_grad()
    for one, same in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, same, rtol=1e-12, atol=1e-14)


def test_accumulated_parts_are_one_batch(tmp_path: Path) -> None:
    words = ("pe=rope", "train.batch_size=7", "task.p_ignore=0.5", "train.clip=null")
    whole, parts = trainer(tmp_path, *words), trainer(tmp_path, *words, "train.accumulate=3")
    for trained in (whole, parts):
        trained.optimizer.zero_grad = lambda: None
        trained.train_step()
    # Float32 sums in another order.
    torch.testing.assert_close(whole.loss_sum, parts.loss_sum, rtol=1e-6, atol=0)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_wilson_is_scipys() -> None:
    for wrong, n in [(0, 1), (1, 1), (0, 50), (3, 50), (50, 50), (123, 456), (1, 100_000)]:
        ours = wilson(wrong, n)
        theirs = binomtest(wrong, n).proportion_ci(0.95, "wilson")
        assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-14)


@pytest.mark.parametrize("good", ["in_domain", "out of domain"])
def test_early_stop_looks_at_in_domain_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: str
) -> None:
    trained = trainer(
        tmp_path, "train.stop_below=0.1", "train.patience=2", "eval.every=3", "train.steps=12"
    )
    answers = trained.evaluator.answers

    def decided(split: str, n: int | None = None) -> Any:
        real = answers(split, n)
        real.wrong[:] = (split == IN_DOMAIN) != (good == "in_domain")
        return real

    monkeypatch.setattr(trained.evaluator, "answers", decided)
    fit(trained)
    assert trained.step == (6 if good == "in_domain" else 12)


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
    seeds = [planned(f"seed={seed}").model().head.weight for seed in (0, 1)]
    assert not torch.equal(*seeds)
    assert not np.array_equal(batches[0][0], TrainData(planned().task, 6, 8).batch(0).tokens)


def test_evaluation_sets_do_not_depend_on_seed_encoding_or_size() -> None:
    one, other = planned("seed=0", "pe=rope"), planned("seed=9", "pe=learned")
    for split in one.splits:
        a, b = evaluation_set(one.task, split, 32), evaluation_set(other.task, split, 32)
        np.testing.assert_array_equal(a.tokens, b.tokens)
    drawn = [evaluation_set(one.task, s, 32).tokens.tobytes() for s in (IN_DOMAIN, "sparse")]
    drawn.append(TrainData(one.task, 0, 32).batch(0).tokens.tobytes())
    assert len(set(drawn)) == 3


def test_loss_on_scored_or_all() -> None:
    scored, everywhere = planned().task, planned("task.loss_on=all").task
    batch = TrainData(scored, 0, 8).batch(0)
    np.testing.assert_array_equal(scored.trained(batch), batch.tokens == READ)
    assert everywhere.trained(batch).all()


def leaves(content: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in content.items():
        here = (*path, key)
        found += leaves(value, here) if isinstance(value, dict) and value else [here]
    return found


def test_identity_changes_with_every_key_but_the_excluded() -> None:
    content = resolved("pe=cope", "positions=randomized", "train.stop_below=0.1")
    kept = []
    for path in leaves(content):
        changed = copy.deepcopy(content)
        section = changed
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = "something else"
        if identity(changed) == identity(content):
            kept.append(".".join(path))
    assert all(excluded(key) or key == "train.length" for key in kept)
    assert {key for key in kept if not key.startswith("tracker.")} == {
        "runs_dir", "device", "threads", "deterministic", "force", "debug", "train.length",
        "train.checkpoint_every", "train.log_every", "eval.batch_tokens",
    }  # fmt: skip
    assert set(EXCLUDED) - set(kept) == {"tracker", "names"}
    assert identity(dict(reversed(content.items()))) == identity(content)


def named(*words: str) -> str:
    return identity(dumped(check(resolved(*words), {})))


def test_identity_is_of_values_not_of_spellings() -> None:
    for words, same in [
        (("pe=rope", "pe.base=10000"), ("pe=rope", "pe.base=1e4")),
        (("task.length=64",), ("task.length=64.0",)),
        (("train.stop_below=null", "eval.every=5"), ("train.stop_below=null", "train.patience=99")),
        (("task.splits.sparse.p_ignore=1",), ("task.splits.sparse.p_ignore=1.0",)),
    ]:
        assert named(*words) == named(*same)
    assert named("task.length=64") != named("task.length=32")


def test_a_mapping_on_the_command_line_replaces_the_yamls() -> None:
    made = resolved("task.splits={foo:{length: 8}}", "task.files={train: F, sparse: G}")["task"]
    assert made["splits"] == {"foo": {"length": 8}}
    assert made["files"] == {"train": "F", "sparse": "G"}
    assert resolved("task.splits={}")["task"]["splits"] == {}
    assert resolved("+task.files.train=F")["task"]["files"] == {"train": "F"}


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
    assert answers.measured()["error"] == 1


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    first = trainer(tmp_path, "pe=learned", "train.steps=9")
    fit(first)
    second = trainer(tmp_path, "pe=learned", "train.steps=9")
    assert second.resume()
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert second.step == 9
    kept = checkpoint.load(first.folder.checkpoint, first.folder.identity)
    assert torch.equal(kept["rng"], torch.get_rng_state())
    assert sorted(path.name for path in first.folder.path.iterdir()) == [
        "checkpoint.pt", "metrics.jsonl", "status.json",
    ]  # fmt: skip


def test_randomized_positions() -> None:
    source = planned("positions=randomized", "positions.max=64").positions
    assert isinstance(source, Randomized)
    data = evaluation_set(planned().task, "sparse", 4)
    drawn = source.sample(generator(0, "test"), 200, 15, training=True)
    assert drawn.shape == (200, 15)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert set(np.unique(drawn)) == set(range(64))
    # Every position is as likely as any other: 200 * 15 / 64 = 46.9, five deviations.
    counts = np.bincount(drawn.ravel(), minlength=64)
    assert abs(counts - 46.9).max() < 5 * math.sqrt(46.9)
    # As published, positions are drawn in evaluation too, unless the other way is chosen.
    plain = planned("positions=randomized", "positions.max=64", "positions.evaluation=false")
    np.testing.assert_array_equal(
        fixed_positions(plain.positions, "sparse", data), np.arange(15)[None]
    )
    one, other = (fixed_positions(source, "sparse", data) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert one.shape == (4, 15)
    assert not np.array_equal(one, fixed_positions(source, "dense", data))


def test_an_infinite_loss_out_of_domain_does_not_lose_the_run(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bursts.py").write_text(
        "from pe_lab.pe.base import PositionalEncoding\n"
        "class Bursts(PositionalEncoding):\n"
        "    def __init__(self, dims):\n"
        "        super().__init__()\n"
        "    def embed(self, x, tokens, pos):\n"
        "        return x * (float('inf') if x.shape[1] > 15 else 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ended = here(*tiny("pe._target_=bursts.Bursts"))
    assert ended.status == 0
    result = summary(the_run(tmp_path / "runs"))["metrics"]
    assert result["ood/long_x2/loss"] is None
    assert math.isfinite(result["in_domain/loss"])
    assert result["ood/long_x2/error"] == 1


def test_a_run_does_not_import_torchs_compiler(tmp_path: Path) -> None:
    """It would take as long as torch itself."""
    code = """
import sys
from pe_lab.cli.main import main
status = main(sys.argv[1:])
sys.exit(status or "torch._dynamo" in sys.modules)
"""
    words = tiny("pe=learned", "device=cpu", "tracker=none", f"runs_dir={tmp_path}")
    assert subprocess.run([sys.executable, "-c", code, *words]).returncode == 0


def test_the_optimizer_of_another_model_is_refused() -> None:
    def adam(*words: str) -> Adam:
        return Adam(planned(*words).model().parameters(), (0.9, 0.999), weight_decay=0.01)

    state = adam().state_dict()
    for words in (("model.d_model=32",), ("model.n_layers=2",)):
        with pytest.raises(ValueError, match="the optimizer's state has shapes"):
            adam(*words).load_state_dict(state)


def test_time_and_kernels_of_each_start_are_recorded(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = tiny("pe=cope", "train.steps=6", "train.checkpoint_every=3")
    step = Trainer.train_step

    def fails(trained: Trainer) -> None:
        if trained.step == 4:
            raise RunError("as the test says")
        step(trained)

    starts: list[dict[str, str]] = [{}, {"PE_LAB_BACKEND": "recompute"}, {}]
    kernels: list[dict[str, str] | None] = []
    for number, env in enumerate(starts):
        with monkeypatch.context() as patch:
            for name, value in {"PE_LAB_BACKEND": "eager", **env}.items():
                patch.setenv(name, value)
            if number < 2:
                patch.setattr(Trainer, "train_step", fails)
            ended = here(*line)
        assert ended.status == (1 if number < 2 else 0)
        assert ("attention changed since this run began" in ended.out) == (number > 0)
        recorded = json.loads((the_run(tmp_path / "runs") / "environment.json").read_text())
        kernels = [start["attention"] for start in recorded]
        times = [start["time"] for start in recorded]
    assert kernels == [{"cope": "eager"}, {"cope": "recompute"}, {"cope": "eager"}]
    assert sorted(times) == times
    assert 0 <= time.time() - times[0] < 3600


def test_kernels_are_those_that_the_encoding_asks_for() -> None:
    def kinds(*words: str) -> set[str] | None:
        model = planned(*words).model()
        before = torch.get_rng_state()
        found = backends(model)
        assert torch.equal(before, torch.get_rng_state())
        assert model.training
        return None if found is None else set(found)

    assert kinds("pe=cope", "model.dropout=0.1") == {"cope"}
    assert kinds("pe=cope", "pe.every=2", "model.n_layers=2") == {"cope", "distance"}
    assert kinds("pe=rope") == {"distance"}
    assert kinds("pe=fox") == {"distance"}
    assert kinds("pe=path") == {"path"}
    assert kinds("pe=tape", "model.n_layers=3") == {"distance"}
    assert kinds("pe=cope", "train.fast=false") is None
