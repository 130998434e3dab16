"""The whole step: its fast form is an equal of the plain one; masks of dropout."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from program import ENCODINGS, ROOT
from torch import Tensor
from trainers import planned

from pe_lab.core.dropout import Drop, attention_rows, mix, reaches_int32_
from pe_lab.kernels.apply import FAST
from pe_lab.train.batches import TrainData
from pe_lab.train.plan import Plan
from pe_lab.train.trainer import Trainer, summed_loss

OURS = {ROOT / "pe_lab", ROOT / "tasks"}
TRUNKS = {
    "pre": (),
    "post": ("model.norm_position=post", "model.activation=gelu"),
    "tied": ("model.tied_embeddings=true", "model.norm=rmsnorm", "model.activation=swiglu"),
}


def loss_and_gradients(made: Plan, changed: Any = None, key: int = 7) -> dict[str, Tensor]:
    """In float64; gradients by the names of their parameters."""
    model = made.model().double()
    with torch.no_grad():
        # A table that starts at zero would hide what reads it.
        torch.manual_seed(0)
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    batch = TrainData(made.task, 0, 5).batch(0)
    counted = batch.trained(made.task.loss_on)
    drawn = made.positions.of_batch(np.random.default_rng(0), batch, training=True)
    loss = summed_loss(model, batch, counted, torch.from_numpy(drawn), key)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize(
    ("pe", "trunk"),
    [
        *(("rope", "pre"), ("cope", "pre"), ("t5", "pre"), ("none", "pre"), ("fox", "pre")),
        *(("cope", "post"), ("alibi", "post"), ("rope", "tied"), ("cope", "tied")),
    ],
)
def test_fast_is_plain(pe: str, trunk: str) -> None:
    words = (f"pe={pe}", *TRUNKS[trunk], "model.dropout=0.3", "task.p_ignore=0.5")
    fast = loss_and_gradients(planned(*words))
    plain = loss_and_gradients(planned(*words, "train.fast=false"))
    assert fast.keys() == plain.keys()
    for name, expected in plain.items():
        size = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(fast[name], expected, rtol=0, atol=1e-11 * size, msg=name)
    # The mask is the key's: with another one all of this would be different.
    other = loss_and_gradients(planned(*words), key=8)
    assert abs(float(other["loss"] - fast["loss"])) > 1e-3


def test_a_training_batch_passes_few_files() -> None:
    """So few that a reader can follow it. The first step also draws batches and checks kernels."""
    trainer = Trainer(planned("pe=cope"), torch.device("cpu"), None, {}, lambda: None)  # type: ignore[arg-type]
    trainer.train_step()
    files = set()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        files.add(Path(frame.f_code.co_filename))

    sys.setprofile(profile)
    try:
        trainer.train_step()
    finally:
        sys.setprofile(None)
    ours = {f"{file.parent.name}/{file.name}" for file in files if OURS & set(file.parents)}
    assert {"training/trainer.py", "models/transformer.py", "pe/cope.py"} <= ours
    assert len(ours) <= 18, sorted(ours)


def test_without_kernels_the_plain_model_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where pe_lab/kernels is deleted."""
    plain = loss_and_gradients(planned("pe=cope", "train.fast=false"))
    fast = planned("pe=cope").model()
    for module in [name for name in sys.modules if name.startswith("pe_lab.kernels")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pe_lab.kernels", None)
    with caplog.at_level("INFO", "pe_lab"):
        found = loss_and_gradients(planned("pe=cope"))
    assert "no kernels" in caplog.text
    assert all(torch.equal(found[name], plain[name]) for name in plain)
    assert fast.dropout_type is not Drop


@pytest.mark.parametrize("pe", ENCODINGS)
def test_fast_is_made_of_fast_modules(pe: str) -> None:
    """And not fast of plain ones: what each kernel computes is tested beside it."""
    words = (f"pe={pe}", "model.n_layers=2", "model.n_heads=2")
    fast = planned(*words).model()
    plain = planned(*words, "train.fast=false").model()
    assert fast.state_dict().keys() == plain.state_dict().keys()
    assert not {type(module) for module in plain.modules()} & {*FAST.values()}
    assert plain.dropout_type is Drop
    assert not {type(module) for module in fast.modules()} & FAST.keys()


LOW = 0xFFFFFFFF


def naive_mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & LOW
    x ^= x >> 15
    x = x * 0x846CA68B & LOW
    return x ^ x >> 16


def naive_kept(drop: Drop, row: int, column: int) -> bool:
    """The formula of dropout.py for one element, in Python's integers."""
    low, high = drop.key & LOW, drop.key >> 32
    of_row = naive_mix((naive_mix((row + low) & LOW) + high) & LOW)
    return naive_mix((of_row + column * 0x9E3779B9) & LOW) >> 8 >= round(drop.p * 2**24)


@pytest.mark.parametrize("key", [0, 1, 2**31, 2**32 - 1, 0x0123456789ABCDEF, 2**63 - 1])
def test_kept_is_the_formula(key: int) -> None:
    drop = Drop(0.3, key)
    rows, columns = [0, 1, 2, 77, 2**31, 2**32 - 1], [0, 1, 2, 1023, 2**20]
    found = drop.kept(torch.tensor(rows), torch.tensor(columns))
    assert found.tolist() == [[naive_kept(drop, r, c) for c in columns] for r in rows]
    # What several models trained at once hand over.
    of_tensor = Drop(0.3, torch.tensor(key)).kept(torch.tensor(rows), torch.tensor(columns))
    assert torch.equal(found, of_tensor)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_shares_and_correlations_are_those_of_independent_draws(p: float) -> None:
    n = 1024
    kept = Drop(p, 123456789012345).kept(torch.arange(n), torch.arange(n)).double() - (1 - p)
    sd = (p * (1 - p)) ** 0.5
    assert abs(float(kept.mean())) < 4 * sd / n
    # Neighbours in a row and in a column, and the other keys and places.
    other = Drop(p, 123456789012346).kept(torch.arange(n), torch.arange(n)).double() - (1 - p)
    place = Drop(p, 123456789012345).at(1).kept(torch.arange(n), torch.arange(n)).double() - (1 - p)
    pairs = [(kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept, kept.T), (kept, other),
             (kept, place), (kept[1:, 1:], kept[:-1, :-1])]  # fmt: skip
    for a, b in pairs[:2] + pairs[3:]:
        assert abs(float((a * b).mean())) < 5 * sd**2 / n
    # The share of a row varies as that of independent draws: chi-square of n rows.
    rows = (kept.sum(1) / (sd * n**0.5)).square().sum()
    assert abs(float(rows) - n) < 5 * (2 * n) ** 0.5


def test_every_place_of_a_deep_model_has_another_mask() -> None:
    drop = Drop(0.5, 42)
    places = [drop] + [drop.at(4 * (i + 1)).at(j) for i in range(200) for j in (1, 2, 3)]
    assert len({d.key for d in places}) == len(places)
    assert all(0 <= d.key < 2**63 for d in places)


def test_dropped_scales_what_stays_and_knows_where_rows_stand() -> None:
    drop, x = Drop(0.25, 7), torch.randn(3, 4, 5, requires_grad=True)
    all_of_it = drop(x)
    zero = all_of_it == 0
    assert 0 < int(zero.sum()) < zero.numel()
    assert torch.equal(all_of_it[~zero], (x * (1 / 0.75))[~zero])
    (grad,) = torch.autograd.grad(all_of_it.sum(), x)
    assert torch.equal(grad, torch.where(zero, 0.0, torch.tensor(1 / 0.75)))
    at = torch.tensor([1, 5, 11])
    assert torch.equal(drop(x.flatten(0, 1)[at], at), all_of_it.flatten(0, 1)[at])


def test_rows_of_attention_are_those_of_the_last_queries() -> None:
    b, h, s = 2, 3, 7
    rows = attention_rows(torch.zeros(b, h, s, s))
    assert rows.tolist() == np.arange(b * h * s).reshape(b, h, s).tolist()
    assert torch.equal(attention_rows(torch.zeros(b, h, 2, s)), rows[:, :, -2:])


@pytest.mark.parametrize("threshold", [0, 1, 0x19999A, 0x800000, 0xFFFFFF, 1 << 24])
def test_in_32_bits_the_threshold_is_met_where_the_hash_meets_it(threshold: int) -> None:
    # Hashes on both sides of the threshold, from the numbers that have them: the second product,
    # undone, and the two steps before it.
    bits = torch.arange(max(0, (threshold << 8) - 999), min(2**32, (threshold << 8) + 999))
    x = bits ^ bits >> 16
    for shift, factor in ((15, 0x846CA68B), (16, 0x7FEB352D)):
        x = x * pow(factor, -1, 2**32) % 2**32
        x = x ^ x >> shift ^ x >> 2 * shift
    assert torch.equal(mix(x), bits)
    small = torch.where(x < 2**31, x, x - 2**32).int()
    found = reaches_int32_(small, torch.empty_like(small), threshold)
    assert torch.equal(found == 1, bits >> 8 >= threshold)
