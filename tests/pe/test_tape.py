"""TAPE against whole models in loops: its tensors pass from layer to layer."""

import cmath
import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from variants import SECTIONS, dims, model, scattered, sequential, tokens

from pe_lab.kernels.fused import kernel_of
from pe_lab.models.transformer import Transformer
from pe_lab.training.plan import build_encodings


def plane(position: int, width: int, base: float) -> list[complex]:
    return [cmath.rect(1, position * base ** (-2 * m / width)) for m in range(width // 2)]


def rotated(x: Tensor, z: Tensor) -> Tensor:
    """Complex pairs of one head of one token."""
    return torch.complex(x[0::2], x[1::2]) * z


def one_sequence(built: Transformer, seen: Tensor, pos: Tensor, base: float) -> Tensor:
    """The hidden states of one sequence, token by token and head by head."""
    length, heads = len(seen), built.blocks[0].attention.n_heads
    x = [built.tokens.weight[token] for token in seen]
    width = len(x[0]) // heads
    planes = [torch.tensor(plane(int(p), width, base)).to(torch.complex128) for p in pos]
    z = [[planes[t]] * heads for t in range(length)]
    for block in built.blocks:
        own = dict(block.attention.encoding.named_parameters())
        qkv = [
            block.attention.qkv(block.norm_attention(x[t]) if block.pre else x[t])
            for t in range(length)
        ]
        new_x, new_z = [], []
        for i in range(length):
            mixed, seen_z = [], []
            for h in range(heads):
                q, k, v = ([part.split(width)[n * heads + h] for part in qkv] for n in range(3))
                logits = [
                    (rotated(q[i], z[i][h]) * rotated(k[j], z[j][h]).conj()).real.sum()
                    / math.sqrt(width)
                    for j in range(i + 1)
                ]
                weights = torch.stack(logits).softmax(0)
                mixed.append(sum(w * v[j] for j, w in enumerate(weights)))
                seen_z.append(sum(w * z[j][h] for j, w in enumerate(weights)))
            attended = x[i] + block.attention.out(torch.cat(mixed))
            entering = block.norm_ff(attended) if block.pre else block.norm_attention(attended)
            leaving = (attended if block.pre else entering) + block.ff(entering)
            new_x.append(leaving if block.pre else block.norm_ff(leaving))
            if own:
                first = [z[i][h] + own["attended"][h] * seen_z[h] for h in range(heads)]
                gates = F.silu(own["gate.weight"] @ entering)
                hidden = [
                    gate * sum(u * first[h] for h, u in enumerate(row))
                    for gate, row in zip(gates, own["up"], strict=True)
                ]
                new_z.append(
                    [
                        first[h] + sum(d * one for d, one in zip(row, hidden, strict=True))
                        for h, row in enumerate(own["down"])
                    ]
                )
        x, z = new_x, new_z
    return torch.stack([built.norm(token) for token in x])


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("choice", [{}, {"base": 20.0, "width": 3}], ids=str)
def test_tape(choice: dict[str, Any], norm_position: str) -> None:
    section = {**SECTIONS["tape"], **choice}
    built = model(section, trunk={"norm_position": norm_position}, d_model=8)
    seen, pos = tokens(2, 5), scattered(2, 5, 16)
    fast = built(seen, pos)
    slow = torch.stack(
        [one_sequence(built, seen[b], pos[b], section["base"]) for b in range(len(seen))]
    )
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    direction = torch.randn(fast.shape)
    leaves = [p for p in built.parameters() if p is not built.head.weight]
    slow_grads, fast_grads = (torch.autograd.grad(out, leaves, direction) for out in (slow, fast))
    torch.testing.assert_close(fast_grads, slow_grads, rtol=1e-10, atol=1e-10)
    single = copy.deepcopy(built).float()(seen, pos)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), slow, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("base", [10000.0, 7.0])
def test_at_first_it_is_rope(base: float) -> None:
    """As it is built, not as ``model`` moves it; the trunk is RoPE's."""
    rope = model({**SECTIONS["rope"], "base": base})
    tape = copy.deepcopy(rope)
    fresh = build_encodings({**SECTIONS["tape"], "base": base}, dims())
    for block, encoding in zip(tape.blocks, fresh, strict=True):
        block.attention.encoding = encoding
    assert any(True for _ in fresh[0].parameters())
    seen = tokens(2, 12)
    for pos in (sequential(12), scattered(2, 12, 48)):
        expected = rope(seen, pos)
        torch.testing.assert_close(tape(seen, pos), expected, rtol=1e-12, atol=1e-12)
    # The gradient reaches what starts at zero: it does not stay RoPE.
    tape(seen, pos).sin().sum().backward()
    for encoding in fresh[:-1]:
        assert encoding.attended.grad.abs().min() > 0
        assert encoding.up.grad.abs().min() > 0


def test_only_the_last_layer_updates_nothing_and_is_fused() -> None:
    layers = build_encodings(SECTIONS["tape"], dims())
    assert [kernel_of(layer) is not None for layer in layers] == [False, False, True]
    assert not list(layers[-1].parameters())
