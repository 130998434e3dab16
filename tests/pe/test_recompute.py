"""Eager attention by blocks of queries: equal to the whole, in memory linear in the length."""

import pytest
import torch
from fast import plain
from variants import SECTIONS, TRAIN_LEN, VARIANTS, model, scattered, sequential, tokens

from pe_lab.kernels import apply, dispatch
from pe_lab.kernels.apply import FastAttention, by_blocks
from pe_lab.models.transformer import Transformer

NAMES = [*SECTIONS, "cope-combine=rope", "cope-gates=sep_keys", "cope-gates=values"]


def results(built: Transformer, length: int) -> list[torch.Tensor]:
    found = []
    for pos in (sequential(length), scattered(2, length, 48)):
        hidden = built(tokens(2, length), pos, key=3)
        direction = torch.linspace(-1, 1, hidden.shape[-1])
        total = (hidden * direction).sin().sum()
        leaves = list(built.parameters())
        found += [hidden, *torch.autograd.grad(total, leaves, materialize_grads=True)]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_whole(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In value and gradient, with dropout; with blocks of two queries."""
    built = model(VARIANTS[name], trunk={"dropout": 0.2}).train()
    if not all(block.attention.row_by_row for block in built.blocks):  # type: ignore[union-attr]
        pytest.skip("a query's weights depend on other queries")
    expected = results(plain(built), TRAIN_LEN)
    monkeypatch.setattr(apply, "BLOCK", 2 * 2 * 2 * TRAIN_LEN)
    for block in built.blocks:
        # PyTorch's fused attention would be used before it.
        block.attention.sdpa = False  # type: ignore[union-attr]
    with dispatch.only(dispatch.RECOMPUTE):
        found = results(built, TRAIN_LEN)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_what_is_kept_grows_with_the_length() -> None:
    """No (T, S) matrix is kept for the backward pass."""
    sizes = []
    for length in (256, 512):
        built = model(SECTIONS["cope"], train_len=length, max_len=length, n_layers=1)
        attention = built.blocks[0].attention
        assert isinstance(attention, FastAttention)
        kept: dict[int, int] = {}

        def pack(x: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        inputs = attention.inputs(torch.randn(1, length, 16), sequential(length), None)
        q, k = inputs.q_BHTD, inputs.k_BHSD
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            by_blocks(attention, q, k, inputs, None)
        sizes.append(sum(kept.values()))
    assert sizes[1] <= 2.1 * sizes[0]
