import torch
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import count_up_to, look_up


class Recurrent(PositionalEncoding):
    """Position vectors from a GRU that starts at a learned vector, added to the embeddings.

        x_i + p_i,   p_0 = start,   p_(k+1) = (1 - z) n + z p_k                        (E,)
        r, z, n' = hidden(p_k),   r, z = sigmoid(r), sigmoid(z)         hidden: Linear(E, 3 E)
        n        = tanh(input_bias + r n')

    These are the equations of nn.GRUCell without an input. Its other two input biases would only
    repeat those of ``hidden``. ``start`` is normal with deviation 1, as ``learned``; weights start
    as in nn.GRUCell, uniform in +-1/sqrt(E). It takes a step for every position up to the largest.
    Any length. Absolute; causal.

    Source: Su's blog, 8130 (2021), which gives p' = f(p). The recurrent baseline of FLOATER
    (2003.09229) also feeds the cell the time.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        width = dims.d_model
        self.start = nn.Parameter(torch.randn(width))
        self.hidden = nn.Linear(width, 3 * width)
        self.input_bias = nn.Parameter(torch.empty(width).uniform_(-1, 1) / width**0.5)

    def _states(self, n: int) -> Tensor:
        """p_0 .. p_(n-1), (n, E). Written out: torch.func has no batched nn.GRUCell."""
        p_E: Tensor = self.start
        states = [p_E]
        for _ in range(n - 1):
            gates, new_E = self.hidden(p_E).split([2 * len(p_E), len(p_E)])
            reset_E, keep_E = gates.sigmoid().chunk(2)
            new_E = self.input_bias.addcmul(reset_E, new_E).tanh()
            p_E = new_E.lerp(p_E, keep_E)
            states.append(p_E)
        return torch.stack(states)

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        # Half precision would add up its rounding over the steps.
        with torch.autocast(x_BSE.device.type, enabled=False):
            states_NE = self._states(count_up_to(pos_BS))
        return x_BSE + look_up(pos_BS, states_NE)
