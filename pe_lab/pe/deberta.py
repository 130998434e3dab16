import math
from typing import Self

from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, replaces_content
from pe_lab.pe.functional import distances, look_up, pick_rows, refuse_where


class DeBERTa(PositionalEncoding):
    """Content to position and position to content; absolute positions enter the last layers.

        logits[i, j] = (q_i . k_j + q_i . key[d(i, j)] + k_j . query[d(j, i)]) / sqrt(3 D)
        d(i, j)      = i - j + clip, at least 0, at most 2 clip - 1
        key          = project_key(relative)                   relative (2 clip, E)
        query        = project_query(relative)                 per head (2 clip, D)

    All layers share the table ``relative``; each has its own projections. A causal model reads
    ``key`` at the rows clip .. 2 clip - 1 and ``query`` at the rows clip .. 0. ``mirrored: false``
    reads ``query`` at d(i, j) too, as the published code does.

    ``absolute_layers: n`` adds a learned table of absolute positions (max_len, E), shared, to the
    input of each of the last n layers. The paper's "enhanced mask decoder" is n = 2 such layers
    after 11 without. There they share weights, and the table goes to the queries of the first. The
    default is 1: with 2, a model of 2 layers would have none without.

    Tables start normal with deviation 0.02 as published, projections as the trunk's linear weights,
    their bias at zero. Any length without absolute positions, else ``max_len``. Absolute in the
    last n layers; causal: i - j < 0 would read the other rows.

    Source: He 2021 (2006.03654), with the projections of its version 1. Version 2's
    ``share_att_key``, which takes those of the content, is not offered.
    """

    def __init__(
        self,
        dims: Dims,
        clip: PositiveInt | None,
        mirrored: bool,
        absolute_layers: NonNegativeInt,
        max_len: PositiveInt | None,
    ) -> None:
        super().__init__()
        refuse_where(
            (
                absolute_layers > dims.n_layers,
                f"absolute_layers={absolute_layers} is more than the {dims.n_layers} layers there "
                f"are: set absolute_layers to {dims.n_layers} or less",
            )
        )
        self.clip = dims.train_len if clip is None else clip
        self.mirrored, self.n_heads = mirrored, dims.n_heads
        self.relative = _table(2 * self.clip, dims.d_model)
        self.project_key = nn.Linear(dims.d_model, dims.heads_width, bias=False)
        self.project_query = nn.Linear(dims.d_model, dims.heads_width)
        nn.init.zeros_(self.project_query.bias)
        self.absolute = None
        if dims.layer >= dims.n_layers - absolute_layers:
            self.max_len = dims.max_len if max_len is None else max_len
            self.absolute = _table(self.max_len, dims.d_model)
        self.shift_invariant = self.absolute is None
        self.unused = {"block_input"} if self.absolute is None else set()

    def share(self, lower: Self) -> None:
        self.relative = lower.relative
        if self.absolute is not None and lower.absolute is not None:
            self.absolute = lower.absolute

    def block_input(self, x_BTE: Tensor, pos_q_BT: Tensor) -> Tensor:
        return x_BTE if self.absolute is None else x_BTE + look_up(pos_q_BT, self.absolute.weight)

    def tables(self) -> tuple[Tensor, Tensor]:
        """k^r and q^r, (H, R, D), rows in the order of the distance, 0 first; all larger distances
        have the last one."""
        c = self.clip
        onwards_RE, back_RE = self.relative.weight[c:], self.relative.weight[: c + 1].flip(0)
        query_RE = back_RE if self.mirrored else onwards_RE
        return self._heads(self.project_key(onwards_RE)), self._heads(self.project_query(query_RE))

    def _heads(self, x_RE: Tensor) -> Tensor:
        return x_RE.view(len(x_RE), self.n_heads, -1).transpose(0, 1)

    @replaces_content
    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        scale = 1 / math.sqrt(3 * q_BHTD.shape[-1])
        far_BTS = distances(inputs.pos_q_BT, inputs.pos_k_BS)
        key_HRD, query_HRD = self.tables()
        to_position_BHTS = pick_rows(
            (q_BHTD * scale) @ key_HRD.transpose(-1, -2), far_BTS.clamp(max=key_HRD.shape[1] - 1)
        )
        row_BTS = far_BTS.clamp(max=query_HRD.shape[1] - 1)
        to_content_BHTS = _pick_for_keys(k_BHSD * scale, query_HRD, row_BTS)
        return content_BHTS / math.sqrt(3) + to_position_BHTS + to_content_BHTS


def _pick_for_keys(k_BHSD: Tensor, query_HRD: Tensor, row_BTS: Tensor) -> Tensor:
    """k_s . query[row[t, s]], (B, H, T, S)."""
    if row_BTS.shape[1] == 1:
        # Every row for every key would cost a token that is decoded the square of the length.
        return (k_BHSD * query_HRD[:, row_BTS[:, 0]].transpose(0, 1)).sum(-1)[:, :, None]
    return pick_rows(k_BHSD @ query_HRD.mT, row_BTS.mT).mT


def _table(rows: int, width: int) -> nn.Embedding:
    table = nn.Embedding(rows, width)
    nn.init.normal_(table.weight, std=0.02)
    return table
