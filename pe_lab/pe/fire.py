import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import distances, refuse_where

EPSILON = 1e-6


class FIRE(PositionalEncoding):
    """Bias on the logits: a perceptron of the distance, relative to the query's position.

        bias[h, i, j] = f(psi(i - j) / (psi(max(i, L)) + 1e-6))[h]
        psi(n)        = log(|c| n + 1)
        f(y)          = out(relu(hidden(y)))               Linear(1, hidden), Linear(hidden, H)

    The argument of f stays in [0, 1], however long the sequence. c is learned and starts at 0.1. L
    is ``threshold`` training lengths times a learned factor that starts at 1. Each layer has its
    own parameters; ``share_layers: true`` is the paper's FIRE-S. Any length. Absolute, since i is
    read; causal.

    Source: Li 2023 (2310.04418), the listing of its appendix, where L = 512 is a quarter of the
    training length. Its output bias, which softmax cannot see, is left out.
    """

    reads_positions = float

    def __init__(
        self,
        dims: Dims,
        hidden: PositiveInt,
        c: PositiveFloat,
        threshold: PositiveFloat,
        share_layers: bool,
    ) -> None:
        super().__init__()
        check_keys(dims, c, threshold)
        self.share_layers, self.threshold = share_layers, threshold * dims.train_len
        self.c = nn.Parameter(torch.tensor(float(c)))
        self.threshold_factor = nn.Parameter(torch.tensor(1.0))
        self.hidden = nn.Linear(1, hidden)
        self.out = nn.Linear(hidden, dims.n_heads, bias=False)

    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
        far_BTS = distances(pos_q_BT, pos_k_BS)
        least = (self.threshold * self.threshold_factor).abs()
        whole_BT = self._psi(pos_q_BT.to(least.dtype).maximum(least))
        share_BTS = self._psi(far_BTS) / (whole_BT[..., None] + EPSILON)
        return self._perceptron(share_BTS.flatten()).view(-1, *share_BTS.shape).transpose(0, 1)

    def _perceptron(self, y_P: Tensor) -> Tensor:
        """f(y), (H, P). Of one number, f is linear between the knots where a unit starts or
        stops: to look up the piece costs a tenth of computing all units for every pair."""
        u_N, b_N = self.hidden.weight[:, 0], self.hidden.bias
        with torch.no_grad():
            knot_N, order_N = torch.where(u_N == 0, torch.inf, -b_N / u_N).sort()
            passed_RN = torch.ones(len(u_N) + 1, len(u_N), device=u_N.device).tril(-1)
            passed_RN = passed_RN[:, order_N.argsort()] > 0
            active_RN = torch.where(u_N == 0, b_N > 0, passed_RN == (u_N > 0))
            piece_P = torch.searchsorted(knot_N, y_P)
        # No matrix product, which autocast would round: half precision knows few distances.
        slope_HR, level_HR = (
            (self.out.weight[:, None] * (active_RN * part_N)).sum(-1) for part_N in (u_N, b_N)
        )
        return slope_HR.index_select(1, piece_P) * y_P + level_HR.index_select(1, piece_P)

    def _psi(self, n: Tensor) -> Tensor:
        return (self.c.abs() * n).log1p()


def check_keys(dims: Dims, c: float, threshold: float) -> None:
    limits = torch.finfo(torch.float32)
    longest = max(float(dims.max_len), threshold * dims.train_len)
    refuse_where(
        (
            c < limits.tiny,
            f"c={c} is 0 in float32, and so is psi: set c to {limits.tiny:.3g} or more",
        ),
        (
            c * longest > limits.max,
            f"c={c} and threshold={threshold} are too large: c n is not finite in float32 at "
            f"n = {longest:.3g}, the longest length or threshold training lengths; lower them",
        ),
    )
