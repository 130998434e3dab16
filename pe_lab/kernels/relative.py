"""Encodings whose logits and values the kernel of relative positions computes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.deberta import DeBERTa
from pe_lab.pe.fox import FoX
from pe_lab.pe.functional import consecutive
from pe_lab.pe.relative import Relative
from pe_lab.pe.shaw import Shaw
from pe_lab.pe.transformer_xl import TransformerXL

PAIRS = 2048 * 2048
"""Pairs of a query and a key from which on a bias of each takes too much memory."""


@dataclass(frozen=True)
class Terms:
    """Arguments of ``dispatch.relative``; ``q`` None: the queries as they are."""

    q: Tensor | None = None
    bias_HN: Tensor | None = None
    kept_BHS: Tensor | None = None
    bias_HTS: Tensor | None = None
    key_HND: Tensor | None = None
    query_HND: Tensor | None = None
    value_HND: Tensor | None = None


class RelativeKernel:
    """Equals the logits, and the values, of an encoding that has such terms.

    Args:
        terms: computes them; None: not for these inputs.
        of_places: whether they are those of the places of tokens, which are their positions only
            where these go up by one.
    """

    kind = "relative"

    def __init__(
        self,
        encoding: PositionalEncoding,
        terms: Callable[[Any, AttentionInputs], Terms | None],
        of_places: bool,
    ) -> None:
        # Not within a closure, which a copy of the model would share.
        self.encoding, self.terms, self.of_places = encoding, terms, of_places

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        if self.of_places and not consecutive(inputs.pos_k_BS):
            return None
        if k_BHSD.shape[-1] != inputs.v_BHSD.shape[-1]:  # as after PoPE's rotation
            return None
        if not dispatch.serves(self.kind, q_BHTD):
            return None
        found = self.terms(self.encoding, inputs)
        if found is None:
            return None
        return dispatch.relative(
            q_BHTD if found.q is None else found.q,
            k_BHSD,
            inputs.v_BHSD,
            found.bias_HN,
            found.kept_BHS,
            found.bias_HTS,
            found.key_HND,
            found.query_HND,
            found.value_HND,
            drop,
        )

    def rotate_and_attend(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        return None


def bias_of_pairs(encoding: PositionalEncoding, inputs: AttentionInputs) -> Terms | None:
    """Of a ``bias`` that is the same in all sequences."""
    pos_q, pos_k = inputs.pos_q_BT, inputs.pos_k_BS
    if len(pos_q) > 1 or pos_q.shape[-1] * pos_k.shape[-1] >= PAIRS:
        return None
    bias_BHTS = encoding.bias(pos_q, pos_k)
    if bias_BHTS is None or len(bias_BHTS) > 1:
        return None
    (h, t), s = inputs.q_BHTD.shape[1:3], inputs.k_BHSD.shape[2]
    return Terms(bias_HTS=bias_BHTS[0].expand(h, t, s))


def relative(encoding: Relative, inputs: AttentionInputs) -> Terms | None:
    h, s = inputs.k_BHSD.shape[1:3]
    # The plain code has the error.
    return None if s > len(encoding.table) else Terms(key_HND=of_heads(encoding.table[:s], h))


def shaw(encoding: Shaw, inputs: AttentionInputs) -> Terms:
    h, s = inputs.k_BHSD.shape[1:3]
    value = encoding.value_table
    return Terms(
        key_HND=of_heads(by_distance(encoding.key_table, s), h),
        value_HND=None if value is None else of_heads(by_distance(value, s), h),
    )


def transformer_xl(encoding: TransformerXL, inputs: AttentionInputs) -> Terms:
    """(q + u) . k + (q + v) . K[n] = (q + u) . (k + K[n]) + (v - u) . K[n]"""
    u, v = encoding.biases["u"], encoding.biases["v"]
    key_HND = encoding.keys(inputs.k_BHSD.shape[2] - 1)
    bias_HN = ((v - u) @ key_HND.mT)[:, 0] / math.sqrt(key_HND.shape[-1])
    return Terms(q=inputs.q_BHTD + u, bias_HN=bias_HN, key_HND=key_HND)


def deberta(encoding: DeBERTa, inputs: AttentionInputs) -> Terms:
    s = inputs.k_BHSD.shape[2]
    key_HND, query_HND = (by_distance(table, s) for table in encoding.tables())
    # All three terms are divided by sqrt(3 D).
    third = 1 / math.sqrt(3)
    return Terms(q=inputs.q_BHTD * third, key_HND=key_HND, query_HND=query_HND * third)


def fox(encoding: FoX, inputs: AttentionInputs) -> Terms:
    return Terms(kept_BHS=encoding.kept(inputs))


def of_heads(table_ND: Tensor, heads: int) -> Tensor:
    """One table for all heads."""
    return table_ND.expand(heads, -1, -1)


def by_distance(table: Tensor, n: int) -> Tensor:
    """(.., n, D): the rows of the distances 0 .. n - 1; the last one is that of all larger ones."""
    rows = table.shape[-2]
    if n <= rows:
        return table[..., :n, :]
    last = table[..., -1:, :].expand(*table.shape[:-2], n - rows, -1)
    return torch.cat((table, last), -2)


RELATIVE: dict[Callable[..., Tensor], Callable[[Any, AttentionInputs], Terms | None]] = {
    Relative.logits: relative,
    Shaw.logits: shaw,
    TransformerXL.logits: transformer_xl,
    DeBERTa.logits: deberta,
    FoX.logits: fox,
}


def relative_kernel(encoding: PositionalEncoding) -> RelativeKernel | None:
    """By the encoding's logits; None: they are none of these."""
    logits = type(encoding).logits
    terms = None if "rotate" in encoding.hooks() else RELATIVE.get(logits)
    return terms and RelativeKernel(encoding, terms, of_places=logits is not FoX.logits)
