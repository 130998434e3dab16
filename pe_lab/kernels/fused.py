"""The kernel that equals the hooks of an encoding.

A kernel stands for functions: CoPE's for ``CoPE.logits``, the one by distance for a ``bias`` that
is marked ``by_distance``. An encoding that overrides one of them is not computed by that kernel.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch, requests
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.combined import Combined
from pe_lab.pe.cope import CoPE, TablePositions
from pe_lab.pe.dape import DAPE
from pe_lab.pe.deberta import DeBERTa
from pe_lab.pe.fox import FoX
from pe_lab.pe.functional import consecutive
from pe_lab.pe.path import PaTH
from pe_lab.pe.relative import Relative
from pe_lab.pe.rerope import NearFar
from pe_lab.pe.rope import RoPE
from pe_lab.pe.shaw import Shaw
from pe_lab.pe.stick_breaking import StickBreaking
from pe_lab.pe.transformer_xl import TransformerXL

ONLY_ROTATION_AND_BIAS = {"embed", "block_input", "rotate", "bias"}
PAIRS = 2048 * 2048
"""Pairs of a query and a key from which on a bias of each takes too much memory."""

Terms = dict[str, Any]
"""Fields of a request besides q, k, v and dropout; q where it is not the queries as they are."""
Make = Callable[[Any, Tensor, Tensor, AttentionInputs], Terms | None]
"""The terms of an encoding for queries and keys; None: not for these inputs."""


@dataclass(frozen=True, eq=False)
class FusedKernel:
    """All of attention up to the averaged values, equal to the hooks of an encoding in value and
    gradient.

    Args:
        terms: of queries and keys as ``rotate`` returned them; None: such are not supported.
        rotating: the terms of queries and keys before it, for a kernel that rotates them.
        by_place: distances are those of the places of tokens, which are those of their positions
            only where these go up by one.
    """

    encoding: PositionalEncoding
    kind: type[requests.Request]
    terms: Make | None = None
    rotating: Make | None = None
    by_place: bool = False

    def attend(
        self, make: Make | None, q: Tensor, k: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        """(B, H, T, D); None: PyTorch has to compute it.

        Args:
            make: ``terms`` with rotated queries and keys, or ``rotating`` with those before it.
        """
        if make is None or dispatch.serving(self.kind, q) is None:
            return None
        if self.by_place and not consecutive(inputs.pos_k_BS):
            return None
        # A rotation may widen queries and keys (PoPE); a kernel takes one width for all.
        v, width = inputs.v_BHSD, inputs.v_BHSD.shape[-1]
        if wider := k.shape[-1] - width:
            if self.kind is not requests.Distance:
                return None
            v = F.pad(v, (0, wider))
        terms = make(self.encoding, q, k, inputs)
        if terms is None:
            return None
        out = dispatch.attend(self.kind(**{"q": q, "k": k, "v": v, "drop": drop, **terms}))
        return out[..., :width] if wider and out is not None else out


def kernel_of(encoding: PositionalEncoding) -> FusedKernel | None:
    """The fused kernel that equals the encoding's hooks of attention. None if no kernel does."""
    if isinstance(encoding, Combined):
        inside = encoding.inside()
        encoding = inside[0] if len(inside) == 1 else encoding
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
    return None if choose is None else choose(encoding)


def _by_distance(encoding: PositionalEncoding) -> FusedKernel:
    """Of an encoding that rotates, or adds a bias."""
    biased = "bias" in encoding.hooks()
    if biased and not encoding.bias_by_distance:
        return FusedKernel(encoding, requests.Distance, bias_of_pairs)
    rotating = None
    # The kernel has no gradient of the angles.
    if isinstance(encoding, RoPE) and not encoding.learned:
        rotating = rotary if type(encoding).rotate is RoPE.rotate else None
    return FusedKernel(encoding, requests.Distance, distance, rotating, by_place=biased)


def distance(encoding: PositionalEncoding, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    """A bias for each head and distance, or none."""
    biased = encoding.bias_by_distance and "bias" in encoding.hooks()
    return {"bias_HN": by_distances(encoding, k)} if biased else {}


def rotary(encoding: RoPE, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    return {**distance(encoding, q, k, inputs), "rotation": encoding.rotation(inputs)}


def bias_of_pairs(
    encoding: PositionalEncoding, q: Tensor, k: Tensor, inputs: AttentionInputs
) -> Terms | None:
    """Of a ``bias`` that is the same in all sequences."""
    pos_q, pos_k = inputs.pos_q_BT, inputs.pos_k_BS
    if len(pos_q) > 1 or pos_q.shape[-1] * pos_k.shape[-1] >= PAIRS:
        return None
    bias_BHTS = encoding.bias(pos_q, pos_k)
    if bias_BHTS is None or len(bias_BHTS) > 1:
        return None
    return {"bias_HTS": bias_BHTS[0].expand(*q.shape[1:3], k.shape[2])}


def near_far(encoding: NearFar, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    far_q, far_k = encoding.far_rotation(inputs)
    rotation = encoding.rotation(inputs)
    return {"near": encoding.near, "rotation": rotation, "far_q": far_q, "far_k": far_k}


def cope(encoding: CoPE, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    assert isinstance(encoding.position, TablePositions)
    # Gates never see a rotation, whether the encoding's or that of another part.
    gate_q, gate_k = encoding.gate_operands(inputs.q_BHTD, inputs.k_BHSD, inputs)
    return {
        "gate_q": gate_q,
        "gate_k": gate_k,
        "table_ND": encoding.position.table,
        "position_scale": q.shape[-1] ** -0.5 if encoding.scale_positions else 1.0,
    }


def dape(encoding: DAPE, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    bias_HN = by_distances(encoding.base, k)
    assert bias_HN is not None
    names = ("bias_HN", "from_content_WH", "by_distance_WN", "out_WH")
    weights = (bias_HN, *encoding.weights(bias_HN))
    return {name: x.to(q.dtype) for name, x in zip(names, weights, strict=True)}


def path(encoding: PaTH, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    wide = torch.promote_types(q.dtype, torch.float32)
    w_BHSD, beta_BHS = encoding.reflections(inputs, wide)
    return {"w_BHSD": w_BHSD, "beta_BHS": beta_BHS, "kept_BHS": encoding.kept(inputs, wide)}


def relative(encoding: Relative, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms | None:
    h, s = k.shape[1:3]
    # The plain code has the error.
    return None if s > len(encoding.table) else {"key_HND": encoding.table[:s].expand(h, -1, -1)}


def shaw(encoding: Shaw, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    h, s = k.shape[1:3]
    value = encoding.value_table
    return {
        "key_HND": by_distance(encoding.key_table, s).expand(h, -1, -1),
        "value_HND": None if value is None else by_distance(value, s).expand(h, -1, -1),
    }


def transformer_xl(encoding: TransformerXL, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    """(q + u) . k + (q + v) . K[n] = (q + u) . (k + K[n]) + (v - u) . K[n]"""
    u, v = encoding.biases["u"], encoding.biases["v"]
    key_HND = encoding.keys(k.shape[2] - 1)
    bias_HN = ((v - u) @ key_HND.mT)[:, 0] / math.sqrt(key_HND.shape[-1])
    return {"q": q + u, "bias_HN": bias_HN, "key_HND": key_HND}


def deberta(encoding: DeBERTa, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Terms:
    key_HND, query_HND = (by_distance(table, k.shape[2]) for table in encoding.tables())
    # All three terms are divided by sqrt(3 D).
    third = 1 / math.sqrt(3)
    return {"q": q * third, "key_HND": key_HND, "query_HND": query_HND * third}


def by_distances(encoding: PositionalEncoding, k_BHSD: Tensor) -> Tensor | None:
    """(H, S): the bias at the distances 0 .. S - 1."""
    pos_BS = torch.arange(k_BHSD.shape[2], device=k_BHSD.device)[None]
    bias_BHTS = encoding.bias(pos_BS[:, -1:], pos_BS)
    return None if bias_BHTS is None else bias_BHTS[0, :, 0].flip(-1)


def by_distance(table: Tensor, n: int) -> Tensor:
    """(.., n, D): the rows of the distances 0 .. n - 1; the last one is that of all larger ones."""
    rows = table.shape[-2]
    if n <= rows:
        return table[..., :n, :]
    return torch.cat((table, table[..., -1:, :].expand(*table.shape[:-2], n - rows, -1)), -2)


def _stick_breaking(encoding: PositionalEncoding) -> FusedKernel | None:
    if isinstance(encoding, Combined):
        (encoding,) = encoding.serving("normalize")
    if type(encoding).normalize is not StickBreaking.normalize:
        return None
    remainder = encoding.remainder == "self"
    return FusedKernel(encoding, requests.StickBreaking, lambda *_: {"remainder": remainder})


def _cope(encoding: CoPE) -> FusedKernel | None:
    if encoding.relative is not None:
        return None
    if not encoding.counts:
        return FusedKernel(encoding, requests.Distance, distance)
    known = type(encoding.position) is TablePositions
    return FusedKernel(encoding, requests.Cope, cope) if known else None


def _dape(encoding: DAPE) -> FusedKernel | None:
    known = encoding.base.bias_by_distance
    return FusedKernel(encoding, requests.Dape, dape, by_place=True) if known else None


def _near_far(encoding: NearFar) -> FusedKernel | None:
    known = type(encoding).rotate is RoPE.rotate and type(encoding).far is NearFar.far
    kernel = FusedKernel(encoding, requests.NearFar, rotating=near_far, by_place=True)
    return kernel if known else None


def _terms(terms: Make, by_place: bool = True) -> Callable[[Any], FusedKernel | None]:
    """Of an encoding whose logits, and values, are terms of ``requests.Distance``."""

    def choose(encoding: PositionalEncoding) -> FusedKernel | None:
        kernel = FusedKernel(encoding, requests.Distance, terms, by_place=by_place)
        return None if "rotate" in encoding.hooks() else kernel

    return choose


BY_LOGITS: dict[Callable[..., Tensor], Callable[[Any], FusedKernel | None]] = {
    CoPE.logits: _cope,
    DAPE.logits: _dape,
    NearFar.logits: _near_far,
    PaTH.logits: lambda encoding: FusedKernel(encoding, requests.Path, path),
    Relative.logits: _terms(relative),
    Shaw.logits: _terms(shaw),
    TransformerXL.logits: _terms(transformer_xl),
    DeBERTa.logits: _terms(deberta),
    FoX.logits: _terms(
        lambda encoding, q, k, inputs: {"kept_BHS": encoding.kept(inputs)}, by_place=False
    ),
}
