from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import widened


class StickBreaking(PositionalEncoding):
    """No softmax: from the nearest key back, each takes a share of what is left of a stick.

        weights[i, j] = share[i, j] (1 - share[i, j+1]) .. (1 - share[i, i-1])         j < i
        share[i, j]   = sigmoid(q_i . k_j / sqrt(D))

    Order alone makes near keys come first; positions are not read. A query does not see its own
    key. The first token sees nothing, and the weights of a row sum to at most 1. They are computed
    as sums of logarithms in at least float32. No parameters, any length. Not absolute; causal by
    nature.

    ``remainder: none`` drops what is left of the stick. ``self`` gives it to the query's token, as
    the authors' training code does by default.

    Source: Tan 2024 (2410.17980). Later versions of its code give the remainder to a learned vector
    of each head and normalise each head's output: not offered.
    """

    shift_invariant = True
    reads_positions = None

    def __init__(self, dims: Dims, remainder: Literal["none", "self"]) -> None:
        super().__init__()
        self.remainder = remainder

    def normalize(self, logits_BHTS: Tensor, mask_TS: Tensor) -> Tensor:
        self_TS, before_TS = _self_and_before(mask_TS)
        wide_BHTS = widened(logits_BHTS)
        # Zero where nothing is taken: a key that is not there leaves the stick as it is.
        passed_BHTS = F.logsigmoid(-wide_BHTS) * before_TS
        left_BHTS = passed_BHTS.flip(-1).cumsum(-1).flip(-1)
        left_after_BHTS = F.pad(left_BHTS[..., 1:], (0, 1))
        weights_BHTS = (F.logsigmoid(wide_BHTS) + left_after_BHTS).exp() * before_TS
        if self.remainder == "self":
            weights_BHTS = weights_BHTS + left_BHTS[..., :1].exp() * self_TS
        return weights_BHTS

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """``share`` b_ij that a key takes of what is left."""
        return {"share": logits_BHTS.sigmoid() * _self_and_before(inputs.mask_TS)[1]}


def _self_and_before(mask_TS: Tensor) -> tuple[Tensor, Tensor]:
    """True at the key of the query's token; true at the keys before it."""
    # How many visible keys are not before s: 1 where s is the query's token.
    since_TS = mask_TS.flip(-1).cumsum(-1).flip(-1)
    return mask_TS & (since_TS == 1), mask_TS & (since_TS > 1)
