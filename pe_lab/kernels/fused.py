"""Which fused kernel equals the hooks of an encoding.

A kernel stands for functions: CoPE's for ``CoPE.logits``, the one by distance for a ``bias`` that
is marked ``by_distance``. An encoding that overrides one of them is not computed by that kernel.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.relative import RelativeKernel, bias_of_pairs, relative_kernel
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.combined import Combined
from pe_lab.pe.cope import CoPE
from pe_lab.pe.cope_positions import TablePositions
from pe_lab.pe.dape import DAPE
from pe_lab.pe.functional import consecutive
from pe_lab.pe.near_far import NearFar
from pe_lab.pe.path import PaTH
from pe_lab.pe.rope import RoPE
from pe_lab.pe.shaw import Shaw
from pe_lab.pe.stick_breaking import StickBreaking

ONLY_ROTATION_AND_BIAS = {"embed", "block_input", "rotate", "bias"}


class FusedKernel(Protocol):
    """All of attention from the rotated queries and keys to the averaged values."""

    @property
    def kind(self) -> str | None:
        """The kind of attention for which dispatch.py chooses a backend; None: it has none."""

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        """(B, H, T, D), equal to the hooks in value and gradient; None: not for these tensors.

        Args:
            q_BHTD, k_BHSD: as ``rotate`` returned them.
            drop: dropout of the attention weights.
        """

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        """``rotate`` and ``attend`` in one kernel; None: call them separately."""


class DistanceKernel:
    """Attention with a bias for each head and distance, or without one."""

    kind = "distance"

    def __init__(self, encoding: PositionalEncoding, biased: bool, rotary: RoPE | None) -> None:
        self.encoding, self.biased, self.rotary = encoding, biased, rotary

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        if self.biased and not consecutive(inputs.pos_k_BS):
            return None
        v, width = inputs.v_BHSD, inputs.v_BHSD.shape[-1]
        if width < k_BHSD.shape[-1]:
            # A rotation may widen queries and keys (PoPE); the kernel takes one width for all.
            v = F.pad(v, (0, k_BHSD.shape[-1] - width))
        out = dispatch.distance(q_BHTD, k_BHSD, v, self.bias(k_BHSD), drop)
        return None if out is None else out[..., :width]

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        if self.rotary is None or (self.biased and not consecutive(inputs.pos_k_BS)):
            return None
        q, k, v = inputs.q_BHTD, inputs.k_BHSD, inputs.v_BHSD
        if not dispatch.serves("rotary_distance", q):
            return None
        rotation = self.rotary.rotation(inputs)
        return dispatch.rotary_distance(q, k, v, self.bias(k), rotation, drop)

    def bias(self, k_BHSD: Tensor) -> Tensor | None:
        return by_distances(self.encoding, k_BHSD) if self.biased else None


def by_distances(encoding: PositionalEncoding, k_BHSD: Tensor) -> Tensor | None:
    """(H, S): the bias at the distances 0 .. S - 1."""
    pos_BS = torch.arange(k_BHSD.shape[2], device=k_BHSD.device)[None]
    bias_BHTS = encoding.bias(pos_BS[:, -1:], pos_BS)
    return None if bias_BHTS is None else bias_BHTS[0, :, 0].flip(-1)


class CopeKernel:
    """Attention with CoPE's logits, from a table of positions."""

    kind = "cope"

    def __init__(self, encoding: CoPE, positions: TablePositions) -> None:
        self.encoding, self.positions = encoding, positions

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        if k_BHSD.shape[-1] != inputs.v_BHSD.shape[-1]:  # as after PoPE's rotation
            return None
        # Gates never see a rotation, whether the encoding's or that of another part.
        gate_q, gate_k = self.encoding.gate_operands(inputs.q_BHTD, inputs.k_BHSD, inputs)
        scale = q_BHTD.shape[-1] ** -0.5 if self.encoding.scale_positions else 1.0
        table_ND = self.positions.table
        return dispatch.cope(q_BHTD, k_BHSD, inputs.v_BHSD, gate_q, gate_k, table_ND, scale, drop)

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        return None


class StickBreakingKernel:
    """Attention with stick-breaking weights."""

    kind = "stick_breaking"

    def __init__(self, encoding: StickBreaking) -> None:
        self.encoding = encoding

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        if k_BHSD.shape[-1] != inputs.v_BHSD.shape[-1]:  # as after PoPE's rotation
            return None
        remainder = self.encoding.remainder == "self"
        return dispatch.stick_breaking(q_BHTD, k_BHSD, inputs.v_BHSD, remainder, drop)

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        return None


class DapeKernel:
    """Attention with DAPE's logits, where the static bias depends on the distance alone."""

    kind = "dape"

    def __init__(self, encoding: DAPE) -> None:
        self.encoding = encoding

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        if not consecutive(inputs.pos_k_BS) or not dispatch.serves(self.kind, q_BHTD):
            return None
        bias_HN = by_distances(self.encoding.base, k_BHSD)
        assert bias_HN is not None
        weights = (x.to(q_BHTD.dtype) for x in self.encoding.weights(bias_HN))
        return dispatch.dape(
            q_BHTD, k_BHSD, inputs.v_BHSD, bias_HN.to(q_BHTD.dtype), *weights, drop
        )

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        return None


class PathKernel:
    """Attention with PaTH's logits."""

    kind = "path"

    def __init__(self, encoding: PaTH) -> None:
        self.encoding = encoding

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        if not dispatch.serves(self.kind, q_BHTD):
            return None
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        reflections = self.encoding.reflections(inputs, wide)
        kept_BHS = self.encoding.kept(inputs, wide)
        return dispatch.path(q_BHTD, k_BHSD, inputs.v_BHSD, *reflections, kept_BHS, drop)

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        return None


class NearFarKernel:
    """Attention with near and far rotations. It has no gradients: these encodings change a trained
    model at test time."""

    kind = "near_far"

    def __init__(self, encoding: NearFar) -> None:
        self.encoding = encoding

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        return None

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        encoding, q, k, v = self.encoding, inputs.q_BHTD, inputs.k_BHSD, inputs.v_BHSD
        known = type(encoding).rotate is RoPE.rotate and type(encoding).far is NearFar.far
        if not known or not consecutive(inputs.pos_k_BS) or not dispatch.serves(self.kind, q):
            return None
        rotation, (far_q, far_k) = encoding.rotation(inputs), encoding.far_rotation(inputs)
        return dispatch.near_far(q, k, v, encoding.near, rotation, far_q, far_k, drop)


def kernel_of(encoding: PositionalEncoding) -> FusedKernel | None:
    """The fused kernel that equals the encoding's hooks of attention; None: there is none."""
    if isinstance(encoding, Combined):
        encoding = encoding.only_part() or encoding
    hooks = encoding.hooks()
    if hooks <= ONLY_ROTATION_AND_BIAS:
        return _by_distance(encoding)
    if "values" in hooks and type(encoding).values is Shaw.values:
        hooks = hooks - {"values"}  # Its kernel adds them.
    without_bias = ONLY_ROTATION_AND_BIAS - {"bias"}
    if "normalize" in hooks:
        return _stick_breaking(encoding) if hooks <= {*without_bias, "normalize"} else None
    if not hooks <= {*without_bias, "logits"}:
        return None
    if isinstance(encoding, Combined):
        # Of what others rotate, CoPE's kernel takes the content term alone, as ``Combined.logits``.
        changing = encoding.serving("logits")
        if len(changing) != 1 or not isinstance(changing[0], CoPE):
            return None
        encoding = changing[0]
    choose = BY_LOGITS.get(type(encoding).logits)
    return relative_kernel(encoding) if choose is None else choose(encoding)


def _by_distance(encoding: PositionalEncoding) -> FusedKernel:
    biased, rotary = "bias" in encoding.hooks(), None
    if biased and not encoding.bias_by_distance:
        return RelativeKernel(encoding, bias_of_pairs, of_places=False)
    if isinstance(encoding, RoPE) and type(encoding).rotate is RoPE.rotate:
        # The kernel has no gradient of the angles.
        rotary = None if encoding.learned else encoding
    return DistanceKernel(encoding, biased, rotary)


def _stick_breaking(encoding: PositionalEncoding) -> StickBreakingKernel | None:
    if isinstance(encoding, Combined):
        (encoding,) = encoding.serving("normalize")
    if not isinstance(encoding, StickBreaking):
        return None
    known = type(encoding).normalize is StickBreaking.normalize
    return StickBreakingKernel(encoding) if known else None


def _dape(encoding: DAPE) -> DapeKernel | None:
    return DapeKernel(encoding) if encoding.base.bias_by_distance else None


def _cope(encoding: CoPE) -> FusedKernel | None:
    if encoding.relative is not None:
        return None
    if not encoding.counts:
        return DistanceKernel(encoding, biased=False, rotary=None)
    positions = encoding.position
    return CopeKernel(encoding, positions) if type(positions) is TablePositions else None


BY_LOGITS: dict[Callable[..., Tensor], Callable[..., FusedKernel | None]] = {
    CoPE.logits: _cope,
    DAPE.logits: _dape,
    NearFar.logits: NearFarKernel,
    PaTH.logits: PathKernel,
}
