"""Which road serves (helper C replaces this file)."""

from torch import Tensor

from pe_lab.dropout import Drop


def cope(q: Tensor, k: Tensor, v: Tensor, gate_q: Tensor, gate_k: Tensor, table: Tensor, position_scale: float, drop: Drop | None) -> Tensor | None:
    return None


def distance(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, drop: Drop | None) -> Tensor | None:
    return None
