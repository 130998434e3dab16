"""Attention kernels in a step that is traced for torch.compile: an operation, and its backward.

The compiler looks into neither; it is told what sizes come out, fuses what is around them, and
calls the road's own code when the step runs. What a road keeps for its backward are outputs of the
forward here, so that the compiler knows who still reads which memory.

Which road: the one of ROADS for the device that is proved, as in roads.py. FlexAttention is none,
being the compiler's own; where there is no kernel the formula is compiled.

Shape letters as in pe/base.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pe_lab.common.dropout import Drop

Given = tuple[Tensor | None, ...]
Kept = Callable[[Tensor, Tensor], list[Tensor]]


@dataclass(frozen=True)
class Kernel:
    """A road's way to do one kind of attention.

    Args:
        function: ``module:name`` of its autograd function, which is called with stand-ins for
            autograd's context and saves its inputs, its result and ``kept``, in this order.
        scaled: whether a ``position_scale`` is among its arguments.
        kept: tensors of the kind that it keeps, from q and k.
        serves: whether it is for these tensors, where not for all of a type that the road takes.
    """

    function: str
    scaled: bool
    kept: Kept
    serves: Callable[[Given, Drop | None], bool] = lambda given, drop: True

    def found(self) -> Any:
        module, _, name = self.function.partition(":")
        return getattr(import_module(f"pe_lab.kernels.{module}"), name)


def _triton_kept(q_BHTD: Tensor, k_BHSD: Tensor) -> list[Tensor]:
    from pe_lab.kernels.triton_cope import KEYS

    (b, h, t, _), s = q_BHTD.shape, k_BHSD.shape[2]
    blocks = -(-s // KEYS)
    return [q_BHTD.new_empty(size, dtype=torch.float32) for size in ((b, h, t), (b * h, blocks, t))]


def _triton_serves(given: Given, drop: Drop | None) -> bool:
    from pe_lab.kernels.triton_cope import serves

    q, table = given[0], given[-1]
    assert q is not None
    assert table is not None
    return serves(q, table, drop)


KERNELS = {
    ("compiled", "cope"): Kernel(
        "compiled_cope:_Cope", True, lambda q, k: [q.new_empty(q.shape[:-1])]
    ),
    ("compiled", "distance"): Kernel(
        "compiled:_Distance", False, lambda q, k: [q.new_empty(2, *q.shape[:-1])]
    ),
    ("triton", "cope"): Kernel("triton_cope:_Cope", True, _triton_kept, _triton_serves),
}


def attended(road: str, kind: str, given: Given, scale: float, drop: Drop | None) -> Tensor:
    """What the road makes of ``given``, (B, H, T, D).

    Args:
        given: q, k, v; then the gates' queries and keys and the table, or the bias.
        scale: ``position_scale`` of CoPE.
    """
    q, k, v, *rest = given
    assert q is not None
    assert k is not None
    if kind == "cope":
        gate_q, gate_k, table = rest
        assert table is not None
        # As the road itself has it: gates that are the queries and keys are none of their own, and
        # S gates count to S at most.
        rest = [
            None if gate_q is q else gate_q,
            None if gate_k is k else gate_k,
            table[: k.shape[2] + 1],
        ]
    elif rest[0] is not None:
        rest = [rest[0].to(q.dtype)]
    p, key = (0.0, None) if drop is None else (drop.p, drop.key)
    made: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        f"{road} {kind}", scale, p, key, q, k, v, *rest
    )
    return made


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str, scale: float, p: float, key: Tensor | None, *given: Tensor | None
    ) -> Tensor:
        forward, _ = _operations()
        out, *kept = forward(name, scale, p, key, list(given))
        ctx.told, ctx.given = (name, scale, p), len(given)
        ctx.save_for_backward(key, *given, out, *kept)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _, backward = _operations()
        key, *saved = ctx.saved_tensors
        given, made = saved[: ctx.given], saved[ctx.given :]
        wanted = list(ctx.needs_input_grad[4:])
        found = iter(backward(*ctx.told, key, given, made, grad, wanted))
        return None, None, None, None, *(next(found) if wants else None for wants in wanted)


@cache
def _operations() -> tuple[Any, Any]:
    """The two operations. Made when they are first needed: to make them takes torch's compiler."""

    @torch.library.custom_op("pe_lab::attention", mutates_args=())
    def forward(
        name: str, scale: float, p: float, key: Tensor | None, given: list[Tensor | None]
    ) -> list[Tensor]:
        context = SimpleNamespace(save_for_backward=lambda *saved: saved_tensors.extend(saved))
        saved_tensors: list[Tensor] = []
        kernel, given = _kernel(name), [_rows(x) for x in given]
        drop, (q, *_) = _drop(p, key), given
        assert q is not None
        with torch.autocast(q.device.type, enabled=False):
            out = kernel.found().forward(
                context, *given, *((scale,) if kernel.scaled else ()), drop
            )
        return [_by_token(out), *saved_tensors[len(given) + 1 :]]

    @forward.register_fake
    def _(
        name: str, scale: float, p: float, key: Tensor | None, given: list[Tensor | None]
    ) -> list[Tensor]:
        q, k = given[:2]
        assert q is not None
        assert k is not None
        return [_like(q), *_kernel(name).kept(q, k)]

    @torch.library.custom_op("pe_lab::attention_backward", mutates_args=())
    def backward(
        name: str,
        scale: float,
        p: float,
        key: Tensor | None,
        given: list[Tensor | None],
        made: list[Tensor],
        grad: Tensor,
        wanted: list[bool],
    ) -> list[Tensor]:
        context = SimpleNamespace(
            saved_tensors=(*(_rows(x) for x in given), *made),
            needs_input_grad=wanted,
            position_scale=scale,
            drop=_drop(p, key),
            turns=None,
        )
        with torch.autocast(grad.device.type, enabled=False):
            grads = _kernel(name).found().backward(context, grad)
        return [_by_token(g) for g, wants in zip(grads, wanted, strict=False) if wants]

    @backward.register_fake
    def _(
        name: str,
        scale: float,
        p: float,
        key: Tensor | None,
        given: list[Tensor | None],
        made: list[Tensor],
        grad: Tensor,
        wanted: list[bool],
    ) -> list[Tensor]:
        return [_like(x) for x, wants in zip(given, wanted, strict=True) if wants and x is not None]

    return forward, backward


def _kernel(name: str) -> Kernel:
    road, kind = name.split()
    return KERNELS[road, kind]


def _drop(p: float, key: Tensor | None) -> Drop | None:
    """On a CPU the key is a number there: to read it costs nothing."""
    if key is None:
        return None
    return Drop(p, int(key) if key.is_cpu else key)


def _rows(x: Tensor | None) -> Tensor | None:
    return x if x is None or x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _by_token(x: Tensor) -> Tensor:
    """x, copied only if it does not lie as ``_like`` promises."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x.contiguous()


def _like(x: Tensor) -> Tensor:
    """(B, H, T, D) as it lies in (B, T, H, D), the heads of a token side by side; else in order."""
    if x.dim() == 4:
        b, h, t, d = x.shape
        return x.new_empty(b, t, h, d).transpose(1, 2)
    return x.new_empty(x.shape)
