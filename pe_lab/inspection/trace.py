"""What attention did in a forward pass: weights, scores and an encoding's own quantities."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pe_lab.models.attention import Attention
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding


@dataclass(frozen=True)
class LayerTrace:
    """One layer's attention, each (B, H, T, T) and 0 where a query may not see a key.

    ``content_BHTS`` is q_i . k_j / sqrt(D) with q and k before any rotation; ``position_BHTS`` is
    what the encoding makes of it less that: a bias, CoPE's q_i . e[p_ij], the turned product less
    the plain one for rotary encodings, 0 for those that act at the input only. Their sum is the
    logits. ``own`` is what the encoding's ``trace`` tells, CoPE's gates and positions.
    """

    weights_BHTS: Tensor
    content_BHTS: Tensor
    position_BHTS: Tensor
    own: dict[str, Tensor]


@contextmanager
def traced(model: Model, take: Callable[[LayerTrace], None]) -> Iterator[None]:
    """Inside, each forward pass of whole sequences hands ``take`` every layer's trace, the lowest
    first.

    The pass itself is the ordinary one, its numbers too: what a fused kernel does not tell is
    computed once more beside it.
    """

    def look(attention: Attention, given: tuple[Any, ...], output: Any) -> None:
        take(_trace(attention, *given))

    handles = [
        module.register_forward_hook(look)
        for module in model.modules()
        if isinstance(module, Attention)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _trace(
    attention: Attention, x_BTE: Tensor, pos_BS: Tensor, queries: int, carried: Any, cache: Any
) -> LayerTrace:
    if cache is not None:
        raise ValueError("a pass with a key cache is not traced: give whole sequences")
    q, k, inputs = attention.sight(x_BTE, pos_BS, queries, carried, None)
    logits, weights = attention.weigh(q, k, inputs)
    plain_q, plain_k = inputs.q_BHTD, inputs.k_BHSD
    content = (plain_q * plain_q.shape[-1] ** -0.5) @ plain_k.transpose(-1, -2)
    own: dict[str, Tensor] = {}
    # A combination, or an encoding made of others, tells what its parts tell.
    for part in attention.encoding.modules():
        if isinstance(part, PositionalEncoding):
            own |= {_free(name, own): values for name, values in part.trace(logits, inputs).items()}

    def seen(values: Tensor) -> Tensor:
        return values.expand_as(logits).masked_fill(~inputs.mask_TS, 0)

    return LayerTrace(
        seen(weights),
        seen(content),
        seen(logits - content),
        {name: seen(values) for name, values in own.items()},
    )


def _free(name: str, taken: dict[str, Tensor]) -> str:
    number = sum(name == other.partition(" of part ")[0] for other in taken)
    return f"{name} of part {number + 1}" if number else name
