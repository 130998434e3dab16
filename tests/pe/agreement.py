"""An encoding's hooks against its formula in loops (naive.py), in value and in gradient."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from naive import Sight
from torch import Tensor
from variants import SECTIONS, dims, move_parameters, scattered, sequential

from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.functional import masked_softmax
from pe_lab.train.encodings import build_encodings

Size = tuple[int, int, int, int, bool]
# (batch, keys, queries, heads, positions that differ by sequence)
SIZES: list[Size] = [(1, 5, 5, 1, False), (2, 6, 3, 2, True), (2, 3, 3, 3, False)]
TRAIN_LEN, MAX_LEN = 5, 16


def first_layer(name: str, choice: dict[str, Any], **sizes: int) -> PositionalEncoding:
    """The encoding of layer 0 with all its parameters moved: what starts at zero hides."""
    torch.manual_seed(0)
    encoding = build_encodings({**SECTIONS[name], **choice}, dims(**sizes))[0]
    move_parameters(encoding)
    return encoding


def causal(logits: Tensor, v: Tensor) -> Tensor:
    """Softmax over the keys that are not later, times v."""
    mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
    return logits.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def attend_by_hooks(
    encoding: PositionalEncoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    x: Tensor,
    pos: Tensor,
    carried: Any = None,
) -> Tensor:
    """What Attention computes with plain softmax, from the hooks alone."""
    t, s = q.shape[2], k.shape[2]
    mask = torch.ones(s, s, dtype=torch.bool).tril()[s - t :]
    inputs = AttentionInputs(x, q, k, v, pos[:, s - t :], pos, carried)
    rotated_q, rotated_k = encoding.rotate(q, k, inputs)
    product = rotated_q @ rotated_k.transpose(-1, -2) / math.sqrt(rotated_q.shape[-1])
    logits = encoding.logits(product, rotated_q, rotated_k, inputs)
    bias = encoding.bias(inputs.pos_q_BT, pos)
    logits = logits if bias is None else logits + bias
    weights = encoding.normalize(logits, mask)
    weights = masked_softmax(logits, mask) if weights is None else weights
    added = encoding.values(weights, inputs)
    mixed = weights.to(v.dtype) @ v
    return mixed if added is None else mixed + added


def agree(
    name: str,
    choice: dict[str, Any],
    size: Size,
    naive: Callable[[Sight], Tensor],
    width: int = 4,
    keys: dict[str, Any] | None = None,
    train_len: int = TRAIN_LEN,
) -> None:
    """Attention by the hooks equals ``naive``, to 1e-10 in float64 and 1e-5 in float32.

    Args:
        width: of a head.
        keys: what the naive form reads besides the yaml's keys and ``choice``.
    """
    batch, n_keys, n_queries, heads, own_positions = size
    sizes = {"d_model": heads * width, "n_heads": heads, "n_layers": 1}
    encoding = first_layer(name, choice, **sizes, train_len=train_len, max_len=MAX_LEN)
    q = torch.randn(batch, heads, n_queries, width) * 1.5
    k, v = (torch.randn(batch, heads, n_keys, width) for _ in range(2))
    x = torch.randn(batch, n_keys, heads * width)
    pos = scattered(batch, n_keys, MAX_LEN) if own_positions else sequential(n_keys)
    direction = torch.randn(batch, heads, n_queries, width)
    operands = [t.requires_grad_() for t in (q, k, v, x)]
    own = dict(encoding.named_parameters())
    known = {**SECTIONS[name], **choice, **(keys or {})}

    slow = naive(Sight(q, k, v, x, pos.expand(batch, -1), own, known))

    def by_hooks(encoding: PositionalEncoding, *operands: Tensor) -> Tensor:
        return attend_by_hooks(encoding, *operands, pos)

    compare(encoding, by_hooks, slow, operands, direction)


def compare(
    encoding: PositionalEncoding,
    compute: Callable[..., Tensor],
    slow: Tensor,
    operands: list[Tensor],
    direction: Tensor,
) -> None:
    """``compute(encoding, *operands)`` against ``slow``, in value and gradient and in float32."""
    fast = compute(encoding, *operands)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    leaves = [*operands, *encoding.parameters()]
    slow_grads, fast_grads = (
        torch.autograd.grad(out, leaves, direction, materialize_grads=True) for out in (slow, fast)
    )
    torch.testing.assert_close(fast_grads, slow_grads, rtol=1e-10, atol=1e-10)

    single = copy.deepcopy(encoding).float()
    narrow = [t.detach().float().requires_grad_() for t in operands]
    out = compute(single, *narrow)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), slow, rtol=1e-5, atol=1e-5)
    grads = torch.autograd.grad(
        out, [*narrow, *single.parameters()], direction.float(), materialize_grads=True
    )
    for got, expected in zip(grads, slow_grads, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def agree_at_input(
    name: str,
    choice: dict[str, Any],
    naive: Callable[[Tensor, Tensor, Tensor, dict[str, Tensor]], Tensor],
    batch: int = 2,
    length: int = 7,
    width: int = 6,
    own_positions: bool = True,
    **sizes: int,
) -> None:
    """``embed`` equals ``naive(x, tokens, pos, parameters)``, which returns (B, S, E).

    ``tokens`` and ``pos`` are (B, S); tolerances as in ``agree``.
    """
    sizes = {"d_model": width, "n_heads": 1, "train_len": TRAIN_LEN, "max_len": MAX_LEN, **sizes}
    encoding = first_layer(name, choice, **sizes)
    pos = scattered(batch, length, sizes["max_len"]) if own_positions else sequential(length)
    tokens = torch.randint(0, dims().vocab_size, (batch, length))
    x = torch.randn(batch, length, width, requires_grad=True)
    direction = torch.randn(batch, length, width)
    slow = naive(x, tokens, pos.expand(batch, -1), dict(encoding.named_parameters()))

    def by_hook(encoding: PositionalEncoding, x: Tensor) -> Tensor:
        return encoding.embed(x, tokens, pos)

    compare(encoding, by_hook, slow, [x], direction)
