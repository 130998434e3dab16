"""The windowed changes of RoPE: what bounds them, and the blocks that they are computed in."""

from typing import Any

import numpy as np
import pytest
import torch
from agreement import first_layer
from fast import plain
from rope_by_hand import DISTANCES
from torch import Tensor
from variants import SECTIONS, model, scattered, sequential, tokens

from pe_lab.kernels import near_far
from pe_lab.kernels.near_far import NearFarKernel
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.pe.base import AttentionInputs


def test_limits_of_the_windowed_ones() -> None:
    """A leak of nothing, and a single group, leave the window's distance."""
    seen, pos = tokens(2, 48), sequential(48)
    rectified = model({**SECTIONS["rerope"], "window": 7})(seen, pos)
    leaky = model({**SECTIONS["leaky_rerope"], "window": 7, "k": 1e12})(seen, pos)
    grouped = model({**SECTIONS["self_extend"], "window": 7, "group": 48})(seen, pos)
    torch.testing.assert_close(leaky, rectified, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grouped, rectified, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("train_len", "max_len", "window", "group"),
    [
        (512, 512, None, 1),
        (512, 100, 511, 1),
        (12, 48, 3, 5),
        (4096, 16384, None, 5),
        (4096, 16385, 1024, 6),
        (64, 256, 63, 193),
        (64, 256, 256, 1),
    ],
)
def test_self_extend_takes_the_smallest_group(
    train_len: int, max_len: int, window: int | None, group: int
) -> None:
    sizes = {"train_len": train_len, "max_len": max_len}
    assert first_layer("self_extend", {"window": window}, **sizes).group == group


def in_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Short sequences are attended to in several blocks too, without the C++ kernel; how many rows
    each block had."""
    monkeypatch.setenv("PE_LAB_BACKEND", "recompute")
    monkeypatch.setattr(near_far, "LARGE", 1)
    monkeypatch.setattr(near_far, "ELEMENTS_CPU", 1)
    rows: list[int] = []
    mix = NearFarKernel._mix

    def counted(encoding: NearFarKernel, *given: Any) -> Tensor:
        rows.append(given[0].shape[1])
        return mix(encoding, *given)

    monkeypatch.setattr(NearFarKernel, "_mix", counted)
    return rows


def loss(hidden: Tensor) -> Tensor:
    """A sum over features would not do: the last norm makes it constant."""
    return (hidden * torch.linspace(-1, 1, hidden.shape[-1])).sin().sum()


WINDOWED = [
    (name, {"window": window, "logn": logn})
    for name in DISTANCES
    for window, logn in ((3, "train"), (20, "none"), (None, "none"))
]


@pytest.mark.parametrize("dropping", [False, True])
@pytest.mark.parametrize(("name", "choice"), WINDOWED, ids=str)
def test_in_blocks_as_by_the_hooks(
    monkeypatch: pytest.MonkeyPatch, name: str, choice: dict[str, Any], dropping: bool
) -> None:
    rows = in_blocks(monkeypatch)
    sizes = {"train_len": 24, "n_layers": 2}
    fast = model({**SECTIONS[name], **choice}, trunk={"dropout": 0.2}, **sizes).train(dropping)
    eager = plain(fast)
    seen = tokens(2, 40)
    scored = ScoredPositions.of(np.arange(80).reshape(2, 40) % 40 > 21, torch.device("cpu"))
    for pos in (sequential(40), scattered(2, 40, 48)):
        for places in (None, scored):
            outs = [built(seen, pos, scored=places, key=3) for built in (fast, eager)]
            torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-12)
            grads = [
                torch.autograd.grad(loss(out), list(built.parameters()), materialize_grads=True)
                for out, built in zip(outs, (fast, eager), strict=True)
            ]
            torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-12)
    # The last layer asks for 18 rows only, where 18 are scored.
    assert {16, 8, 2} <= {*rows}


def test_blocks_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = in_blocks(monkeypatch)
    built = model(SECTIONS["leaky_rerope"], train_len=24).float()
    seen, pos = tokens(2, 40), sequential(40)
    exact = built(seen, pos)
    rows.clear()
    with torch.autocast("cpu", torch.bfloat16):
        half = built(seen, pos)
        loss(half).backward()
    assert rows
    torch.testing.assert_close(half.float(), exact, rtol=0, atol=0.1)
    for name, parameter in built.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_blocks_leave_positions_alone_that_do_not_go_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = in_blocks(monkeypatch)
    built = model(SECTIONS["rerope"])
    pos = sequential(40).flip(-1)
    found = built(tokens(1, 40), pos)
    assert rows == []
    torch.testing.assert_close(plain(built)(tokens(1, 40), pos), found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DISTANCES)
def test_memory_of_blocks_grows_with_the_length(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What is kept for the backward is no (T, T) matrix."""
    monkeypatch.setattr(near_far, "ELEMENTS_CPU", 2**14)
    encoding = first_layer(name, {}, d_model=4, n_heads=1, train_len=64, max_len=1024)
    sizes = []
    for t in (512, 1024):
        q, k, v = torch.randn(3, 1, 1, t, 4, requires_grad=True).unbind(0)
        kept: dict[int, int] = {}

        def pack(x: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        inputs = AttentionInputs(v[:, 0], q, k, v, sequential(t), sequential(t))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = NearFarKernel(encoding).attend(*encoding.rotate(q, k, inputs), inputs, None)
        assert out is not None
        sizes.append(sum(kept.values()))
    assert sizes[1] <= 2 * sizes[0]
