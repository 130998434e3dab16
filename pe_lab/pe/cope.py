import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, WithConstants, by_position
from pe_lab.pe.functional import alibi_slopes, is_traced, refuse_where, widened
from pe_lab.pe.relative import Relative
from pe_lab.pe.rope import RoPE

MLP_WIDTH = 64


class CoPE(PositionalEncoding):
    """Contextual positions: each query counts the tokens back to a key, weighted by gates.

        gate[i, j]     = sigmoid(q_i . k_j / sqrt(D))                            (H, T, S)
        position[i, j] = min(gate[i, j] + gate[i, j+1] + .. + gate[i, i], npos - 1)
        logits[i, j]   = q_i . k_j / sqrt(D) + q_i . table[position[i, j]]       table (npos, D)

    A fractional position interpolates the two rows around it; at a whole one the gradient is that
    of the upper side. The table starts at zero. Each layer has one, shared by its heads. A gate
    counts only where the mask allows it. Any length, but for ``combine: relative``. Not absolute;
    causal. This is "Contextual", not "Clipped RoPE" (2602.05258) of the same name. ``npos: null``
    is the trained length + 1.

    - ``gates``: ``sep_keys`` projects separate keys from the attention's input. ``values`` takes
      sigmoid(q_i . v_j / sqrt(D)).
    - ``every: K``: only the layers K, 2 K, .. count. The others keep what ``combine`` adds, and are
      NoPE without it.
    - ``combine: relative`` adds q_i . r[i - j] / sqrt(D), with a table r for each layer. The
      published code has one for the model, as ``pe=combined 'pe.parts=[cope, relative]'`` has.
    - ``combine: rope`` rotates the content term. Gates and the table use q and k before the
      rotation: a rotated q_i . table[p] would depend on the absolute i.
    - ``combine: alibi_slope`` adds -slopes[h] position[i, j] in place of the table's term. The
      slopes are ALiBi's, not the slopes of the paper's flip-flop runs.
    - ``position: mlp``: the row of a position p is W relu(w p / (npos - 1) + b) with 64 hidden
      units. W starts at zero.
    - ``scale_positions: true`` divides the position term by sqrt(D) too, as the published code
      does.

    Source: Golovneva 2024 (2405.18719): the defaults are its listing, the other choices its
    sections 4 and 5, appendix C and the published code.
    """

    shift_invariant = True

    def __init__(
        self,
        dims: Dims,
        npos: PositiveInt | None,
        gates: Literal["keys", "sep_keys", "values"],
        share_layers: bool,
        every: PositiveInt,
        combine: Literal["none", "relative", "rope", "alibi_slope"],
        position: Literal["table", "mlp"],
        scale_positions: bool,
    ) -> None:
        super().__init__()
        check_keys(dims, share_layers, every, combine)
        self.gates, self.share_layers, self.scale_positions = gates, share_layers, scale_positions
        self.npos = dims.train_len + 1 if npos is None else npos
        self.counts = (dims.layer + 1) % every == 0
        self.reads_positions = {"relative": int, "rope": float}.get(combine)
        self.relative = Relative(dims, None, share_layers) if combine == "relative" else None
        self.rope = RoPE(dims, 10000, "interleaved") if combine == "rope" else None
        if combine != "rope":
            self.unused = {"rotate"} if self.counts or self.relative else {"rotate", "logits"}
        if self.relative is not None:
            self.max_len = self.relative.max_len
        if not self.counts:
            return
        self.gate_key = nn.Linear(dims.d_model, dims.heads_width) if gates == "sep_keys" else None
        self.position: nn.Module
        if combine == "alibi_slope":
            self.position = SlopePositions(dims.n_heads, self.npos)
        elif position == "mlp":
            self.position = MLPPositions(dims.head_dim, self.npos)
        else:
            self.position = TablePositions(dims.head_dim, self.npos)

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        return (q_BHTD, k_BHSD) if self.rope is None else self.rope.rotate(q_BHTD, k_BHSD, inputs)

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        logits_BHTS = content_BHTS
        if self.relative is not None:
            logits_BHTS = self.relative.logits(content_BHTS, q_BHTD, k_BHSD, inputs)
        if not self.counts:
            return logits_BHTS
        gate_logits_BHTS = self._gate_logits(content_BHTS, inputs)
        # A running sum of many gates would drown its summands in half precision.
        mask_TS = None if inputs.sees_all else inputs.mask_TS
        term_BHTS = self.position(widened(inputs.q_BHTD), widened(gate_logits_BHTS), mask_TS)
        if self.scale_positions:
            term_BHTS = term_BHTS / math.sqrt(q_BHTD.shape[-1])
        return logits_BHTS + term_BHTS

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """The ``gate`` g_ij and the ``position`` p_ij."""
        if not self.counts:
            return {}
        q, k = inputs.q_BHTD, inputs.k_BHSD
        content = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        gate_logits = widened(self._gate_logits(content, inputs))
        return {
            "gate": gate_logits.sigmoid() * inputs.mask_TS,
            "position": count_positions(gate_logits, inputs.mask_TS, self.npos - 1),
        }

    def _gate_logits(self, content_BHTS: Tensor, inputs: AttentionInputs) -> Tensor:
        if self.gates == "keys" and self.rope is None:
            return content_BHTS
        gate_q, gate_k = self.gate_operands(inputs)
        return gate_q @ gate_k.transpose(-1, -2) / math.sqrt(gate_q.shape[-1])

    def gate_operands(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """The tensors gate_q and gate_k of the gates sigmoid(gate_q_i . gate_k_j / sqrt(D))."""
        q_BHTD, k_BHSD = inputs.q_BHTD, inputs.k_BHSD
        if self.gates == "values":
            return q_BHTD, inputs.v_BHSD
        if self.gate_key is None:
            return q_BHTD, k_BHSD
        key_BSE: Tensor = self.gate_key(inputs.x_BSE).to(q_BHTD.dtype)
        return q_BHTD, key_BSE.view(*key_BSE.shape[:2], k_BHSD.shape[1], -1).transpose(1, 2)


def check_keys(dims: Dims, share_layers: bool, every: int, combine: str) -> None:
    refuse_where(
        (
            every > dims.n_layers,
            f"every={every} leaves none of {dims.n_layers} layers to count in: set every to "
            f"{dims.n_layers} or less",
        ),
        (
            share_layers and every > 1 and combine in ("relative", "rope"),
            f"share_layers=true cannot go with every={every} and combine={combine}, whose "
            "layers differ: set share_layers=false or every=1",
        ),
    )


class TablePositions(nn.Module):
    """q_i . e[p_ij], e a learned table interpolated between whole positions."""

    def __init__(self, head_dim: int, npos: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(npos, head_dim))

    def forward(self, q_BHTD: Tensor, gate_logits_BHTS: Tensor, mask_TS: Tensor | None) -> Tensor:
        scores_BHTR = (q_BHTD @ self.table.T).to(gate_logits_BHTS.dtype)
        if is_traced(gate_logits_BHTS) or torch.is_inference_mode_enabled():
            return interpolate(
                scores_BHTR, count_positions(gate_logits_BHTS, mask_TS, len(self.table) - 1)
            )
        return CountAndPick.apply(gate_logits_BHTS, scores_BHTR, mask_TS)


class MLPPositions(nn.Module):
    """q_i . e[p_ij], e a perceptron of the fractional position."""

    def __init__(self, head_dim: int, npos: int) -> None:
        super().__init__()
        self.most = npos - 1
        self.hidden = nn.Linear(1, MLP_WIDTH)
        # No bias: it would add q_i . c to every key of a row, which softmax cannot see.
        self.out = nn.Linear(MLP_WIDTH, head_dim, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, q_BHTD: Tensor, gate_logits_BHTS: Tensor, mask_TS: Tensor | None) -> Tensor:
        share_BHTS = count_positions(gate_logits_BHTS, mask_TS, self.most) / max(self.most, 1)
        hidden_BHTSN = self.hidden(share_BHTS[..., None]).relu()
        # q . (W h) = (q W) . h: no (T, S, D) tensor of vectors e.
        q_BHTN = q_BHTD @ self.out.weight
        return (hidden_BHTSN @ q_BHTN[..., None]).squeeze(-1)


class SlopePositions(WithConstants):
    """-m_h p_ij with ALiBi's slopes m_h."""

    def __init__(self, n_heads: int, npos: int) -> None:
        super().__init__()
        self.most = npos - 1
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(n_heads)), persistent=False)

    def forward(self, q_BHTD: Tensor, gate_logits_BHTS: Tensor, mask_TS: Tensor | None) -> Tensor:
        return -self.slopes[:, None, None] * count_positions(gate_logits_BHTS, mask_TS, self.most)


def count_positions(gate_logits_BHTS: Tensor, mask_TS: Tensor | None, most: int) -> Tensor:
    """The positions p_ij from the logits of the gates; ``mask_TS`` None masks nothing."""
    return sum_gates(masked_gates(gate_logits_BHTS, mask_TS), most)


def masked_gates(gate_logits_BHTS: Tensor, mask_TS: Tensor | None) -> Tensor:
    """The gates g_ij, zero where masked."""
    gates_BHTS = gate_logits_BHTS.sigmoid()
    return gates_BHTS if mask_TS is None else gates_BHTS * mask_TS


def sum_gates(gates_BHTS: Tensor, most: int) -> Tensor:
    """The positions p_ij: the gates of row i summed from the query back to j, at most ``most``."""
    return gates_BHTS.flip(-1).cumsum(-1).flip(-1).clamp(max=most)


def interpolate(scores_BHTR: Tensor, p_BHTS: Tensor) -> Tensor:
    """The scores at the positions p, linear between whole positions: ``CountAndPick`` without its
    backward. It makes fewer calls, whose number limits the speed of decoding."""
    below = p_BHTS.long()
    above = (below + 1).clamp(max=scores_BHTR.shape[-1] - 1)
    return torch.lerp(scores_BHTR.gather(-1, below), scores_BHTR.gather(-1, above), p_BHTS.frac())


class CountAndPick(torch.autograd.Function):
    """The scores at the counted positions, linear between whole positions. The gradient is that of
    autograd, in fewer passes over (B, H, T, S)."""

    @staticmethod
    def forward(
        ctx: Any, gate_logits_BHTS: Tensor, scores_BHTR: Tensor, mask_TS: Tensor | None
    ) -> Tensor:
        gates = masked_gates(gate_logits_BHTS, mask_TS)
        p = sum_gates(gates, scores_BHTR.shape[-1] - 1)
        whole = p.long()
        fraction = p.frac_()
        # The last row has no next one: slope 0, and so no gradient where p is clamped.
        slope = F.pad(scores_BHTR.diff(dim=-1), (0, 1)).gather(-1, whole)
        ctx.save_for_backward(scores_BHTR, gates, whole, fraction, slope)
        return torch.addcmul(scores_BHTR.gather(-1, whole), fraction, slope)

    @staticmethod
    def backward(ctx: Any, grad_BHTS: Tensor) -> tuple[Tensor, Tensor, None]:
        scores_BHTR, gates, whole, fraction, slope = ctx.saved_tensors
        # The gate at k is part of every p_ij with j <= k.
        grad_gates = (grad_BHTS * slope).cumsum(-1)
        grad_gate_logits = grad_gates.mul_(gates).mul_(1 - gates)
        empty_BHTR = torch.zeros_like(scores_BHTR)
        above = empty_BHTR.scatter_add(-1, whole, grad_BHTS * fraction)
        grad_scores = empty_BHTR.scatter_add(-1, whole, grad_BHTS) - above
        return grad_gate_logits, grad_scores + F.pad(above[..., :-1], (1, 0)), None
