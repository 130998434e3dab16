import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.conv import check_taps
from pe_lab.pe.functional import frequencies, rotate_halves
from pe_lab.pe.rope import check_pairs


class SelectiveRoPE(PositionalEncoding):
    """Queries and keys, rotated by the running sum of steps computed from the input.

        q_i, k_j rotated by angle_i, angle_j           features m and m + D/2 are a pair
        angle_i[h, m] = base^(-2m/D) (w_0[h, m] + .. + w_i[h, m])
        w             = convolution(up(down(x')))      over ``kernel`` tokens, causal

    x' is the attention's input with each head's slice at length 1; ``down`` is (rank, E), ``up`` (H
    D/2, rank). Positions are not read, the order of the tokens is. A constant w = 1 is RoPE. Any
    length. Not absolute; causal.

    ``gate: true`` multiplies w by sigmoid(gate(x')), one for each head. ``bias: true`` adds
    exp(log_bias[h, m]), with log_bias from 0, before the gate.

    Source: Movahedi 2025 (2511.17388) and the authors' code, whose defaults these are. Not offered:
    its projection of full rank, other temperatures than RoPE's and learned ones. Weights start
    uniform within 1/sqrt(fan in), as in the authors' module; their language models redraw them with
    deviation 0.02.
    """

    shift_invariant = True
    reads_positions = None

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        rank: PositiveInt,
        kernel: PositiveInt,
        gate: bool,
        bias: bool,
    ) -> None:
        super().__init__()
        check_pairs(dims)
        check_taps(dims, "kernel", kernel)
        steps = dims.heads_width // 2
        self.down = nn.Linear(dims.d_model, rank, bias=False)
        self.up = nn.Linear(rank, steps, bias=False)
        self.convolution = nn.Conv1d(steps, steps, kernel, groups=steps, bias=False)
        self.gate = nn.Linear(dims.d_model, dims.n_heads) if gate else None
        self.log_bias = nn.Parameter(torch.zeros(steps)) if bias else None
        self.frequencies = nn.Buffer(frequencies(dims.head_dim, base), persistent=False)

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        angle_BHSM = self._angles(inputs.x_BSE, q_BHTD.shape[1])
        cos, sin = angle_BHSM.cos(), angle_BHSM.sin()
        t = q_BHTD.shape[2]
        return (
            rotate_halves(q_BHTD, cos[:, :, -t:], sin[:, :, -t:]),
            rotate_halves(k_BHSD, cos, sin),
        )

    def _angles(self, x_BSE: Tensor, n_heads: int) -> Tensor:
        x_BSHD = x_BSE.view(*x_BSE.shape[:2], n_heads, -1)
        length = (x_BSHD.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        unit_BSE = (x_BSHD / length).flatten(-2)
        # Angles of many radians are sums of small steps: no half precision from here on.
        wide = torch.promote_types(x_BSE.dtype, torch.float32)
        step_BSC = self._convolve(self.up(self.down(unit_BSE)).to(wide))
        if self.log_bias is not None:
            step_BSC = step_BSC + self.log_bias.exp()
        step_BSHM = step_BSC.view(*x_BSE.shape[:2], n_heads, -1)
        if self.gate is not None:
            step_BSHM = step_BSHM * self.gate(unit_BSE).sigmoid()[..., None]
        return (step_BSHM.cumsum(1) * self.frequencies.to(wide)).transpose(1, 2)

    def _convolve(self, x_BSC: Tensor) -> Tensor:
        taps_CK: Tensor = self.convolution.weight[:, 0]
        kernel, length = taps_CK.shape[1], x_BSC.shape[1]
        padded = F.pad(x_BSC, (0, 0, kernel - 1, 0))
        # A handful of shifted products: faster on a CPU than a grouped convolution.
        out_BSC = padded[:, :length] * taps_CK[:, 0]
        for n in range(1, kernel):
            out_BSC = out_BSC + padded[:, n : n + length] * taps_CK[:, n]
        return out_BSC
