from torch import Tensor

from pe_lab.pe.functional import look_up
from pe_lab.pe.learned import PositionTable


class Multiplicative(PositionTable):
    """Learned factors of the absolute position, multiplied with the token embeddings.

        x_i * (1 + table[i])                                     table (max_len, E)

    The product is feature by feature. Weight decay draws the factor to 1. The factors start normal
    around 1 with deviation 1; the source gives no start. A position past ``max_len`` is an error.
    Absolute; causal.

    Source: Su's blog, 8130 (2021), x_k * p_k in place of x_k + p_k.
    """

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        return x_BSE * (1 + look_up(pos_BS, self.table))
