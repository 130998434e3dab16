from pe_lab.pe.base import PositionalEncoding


class NoPE(PositionalEncoding):
    """No positional encoding: the causal mask alone leaks order.

        logits[i, j] = q_i . k_j / sqrt(D)

    No parameters, any length. Not absolute; causal.

    Source: Haviv 2022 (2203.16634); Kazemnejad 2023 (2305.19466).
    """

    shift_invariant = True
    reads_positions = None
