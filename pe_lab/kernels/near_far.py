"""Attention with near and far rotations: a fused kernel, else by blocks of queries.

Each logit is computed only as it is used, near or far. Memory grows with the length, not with its
square: the backward pass recomputes the weights of every block.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.pe.base import AttentionInputs
from pe_lab.pe.functional import consecutive, distances, once_for_all_layers
from pe_lab.pe.masks import additive, causal_mask
from pe_lab.pe.near_far import NearFar
from pe_lab.pe.rope import RoPE

LARGE = 256 * 256
"""Logits of a head from which on blocks are faster, as measured on a CPU."""
ELEMENTS_CPU, ELEMENTS_ELSEWHERE = 2**20, 2**24
"""Logits of a block: a GPU needs larger ones."""


class NearFarKernel:
    """Equals ``NearFar.logits`` and softmax."""

    kind = "near_far"

    def __init__(self, encoding: NearFar) -> None:
        self.encoding = encoding

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        encoding, q = self.encoding, inputs.q_BHTD
        known = type(encoding).rotate is RoPE.rotate and type(encoding).far is NearFar.far
        if not known or not consecutive(inputs.pos_k_BS) or not dispatch.serves(self.kind, q):
            return None
        rotation, (far_q, far_k) = encoding.rotation(inputs), encoding.far_rotation(inputs)
        k, v = inputs.k_BHSD, inputs.v_BHSD
        return dispatch.near_far(q, k, v, encoding.near, rotation, far_q, far_k, drop)

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        logits = q_BHTD.shape[2] * k_BHSD.shape[2]
        if logits < LARGE or not ascending(inputs.pos_k_BS):
            return None
        with torch.autocast(q_BHTD.device.type, enabled=False):
            return self._in_blocks(q_BHTD, k_BHSD, inputs, drop)

    def _in_blocks(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor:
        (b, h, t, d), s = q_BHTD.shape, k_BHSD.shape[2]
        pos_q, pos_k = inputs.pos_q_BT, inputs.pos_k_BS
        far_q, far_k = self.encoding.far(inputs)
        q_BHTD, far_q = q_BHTD * d**-0.5, far_q * d**-0.5
        height = max(16, (ELEMENTS_CPU if q_BHTD.is_cpu else ELEMENTS_ELSEWHERE) // (b * h * s))
        starts = torch.arange(0, t, height, device=pos_q.device)
        ends = (starts + height).clamp(max=t) - 1
        edges = [(pos_q[:, at] - self.encoding.near).contiguous() for at in (starts, ends)]
        far_BN = [torch.searchsorted(pos_k.contiguous(), at, right=True) for at in edges]
        # Keys that are far for every query of a block, and those that are for any.
        every, some = far_BN[0].amin(0).tolist(), far_BN[1].amax(0).tolist()
        mixed: list[Tensor] = []
        for start, all_far, any_far in zip(range(0, t, height), every, some, strict=True):
            rows = slice(start, min(start + height, t))
            seen = s - t + rows.stop
            pos = pos_q[:, rows], pos_k[:, all_far:any_far]
            block: Tensor = _Recomputed.apply(  # type: ignore[no-untyped-call]
                partial(self._mix, *pos, drop, s),
                q_BHTD[:, :, rows],
                k_BHSD[:, :, all_far:seen],
                far_q[:, :, rows],
                far_k[:, :, :any_far],
                inputs.v_BHSD[:, :, :seen],
            )
            mixed.append(block)
        return torch.cat(mixed, 2)

    def _mix(
        self,
        pos_q_BR: Tensor,
        pos_k_BN: Tensor,
        drop: Drop | None,
        length: int,
        q_BHRD: Tensor,
        k_BHXD: Tensor,
        far_q_BHRD: Tensor,
        far_k_BHYD: Tensor,
        v_BHSD: Tensor,
    ) -> Tensor:
        """Averaged values of R queries, scaled already, which are the last of S keys.

        Args:
            pos_k_BN: positions of the keys that are among both the X last and the Y first.
            length: the number of keys of the whole sequence.
        """
        (b, h, r, _), s, n = q_BHRD.shape, v_BHSD.shape[2], pos_k_BN.shape[-1]
        near = q_BHRD @ k_BHXD.transpose(-1, -2)
        far = far_q_BHRD @ far_k_BHYD.transpose(-1, -2)
        first = far.shape[-1] - n
        is_near_BRN = distances(pos_q_BR, pos_k_BN) < self.encoding.near
        either = torch.where(is_near_BRN[:, None], near[..., :n], far[..., first:])
        logits_BHRS = torch.cat((far[..., :first], either, near[..., n:]), -1)
        logits_BHRS[..., -r:] += additive(causal_mask(r, r, near.device), near.dtype)
        wide = torch.promote_types(near.dtype, torch.float32)
        weights_BHRS = logits_BHRS.softmax(-1, dtype=wide)
        if drop is not None:
            # The number of a row is (b H + h) S + i, as for the whole sequence.
            heads_BH1 = torch.arange(b * h, device=near.device).view(b, h, 1) * length
            rows_BHR = heads_BH1 + torch.arange(s - r, s, device=near.device)
            weights_BHRS = drop(weights_BHRS, rows_BHR)
        return weights_BHRS.to(v_BHSD.dtype) @ v_BHSD


@once_for_all_layers
def ascending(pos_BS: Tensor) -> bool:
    """Whether no position of a sequence is smaller than the one before."""
    return bool((pos_BS.diff(dim=-1) >= 0).all())


class _Recomputed(torch.autograd.Function):
    """A function of tensors that is computed again in the backward pass. It has no double
    backward, and needs no import of torch.utils.checkpoint, which takes seconds."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            tensors = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            out = ctx.function(*tensors)
        return None, *torch.autograd.grad(out, tensors, grad)
