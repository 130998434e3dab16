"""Attention of a forward pass: weights, scores and quantities of the encoding."""

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
    """Attention of one layer; each tensor is (B, H, T, T), 0 where a query does not see a key.

    ``content_BHTS`` is q_i . k_j / sqrt(D) with q and k before any rotation; ``position_BHTS`` is
    the logits minus the content: a bias, CoPE's q_i . e[p_ij], the rotated minus the plain
    product for rotary encodings, 0 for encodings that act at the input only. ``quantities`` are
    what the encoding's ``trace`` returns, such as CoPE's gates and positions.
    """

    weights_BHTS: Tensor
    content_BHTS: Tensor
    position_BHTS: Tensor
    quantities: dict[str, Tensor]


@contextmanager
def trace_attention(model: Model, callback: Callable[[LayerTrace], None]) -> Iterator[None]:
    """Within this context, each forward pass over whole sequences calls ``callback`` with the
    trace of every layer, lowest first.

    The pass itself and its outputs are unchanged: what a fused kernel does not return is computed
    a second time.
    """

    def hook(attention: Attention, args: tuple[Any, ...], output: Any) -> None:
        callback(_trace(attention, *args))

    handles = [
        module.register_forward_hook(hook)
        for module in model.modules()
        if isinstance(module, Attention)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _trace(
    attention: Attention,
    x_BTE: Tensor,
    pos_BS: Tensor,
    carried: Any = None,
    cache: Any = None,
    drop: Any = None,
) -> LayerTrace:
    if cache is not None:
        raise ValueError("a pass with a key cache is not traced: give whole sequences")
    inputs = attention.inputs(x_BTE, pos_BS, carried)
    q, k = attention.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
    logits, weights = attention.weights(q, k, inputs)
    plain_q, plain_k = inputs.q_BHTD, inputs.k_BHSD
    content = (plain_q * plain_q.shape[-1] ** -0.5) @ plain_k.transpose(-1, -2)
    quantities: dict[str, Tensor] = {}
    # A combination of encodings has the quantities of its parts.
    for part in attention.encoding.modules():
        if isinstance(part, PositionalEncoding):
            for name, values in part.trace(logits, inputs).items():
                quantities[_unique(name, quantities)] = values

    def visible(values: Tensor) -> Tensor:
        return values.expand_as(logits).masked_fill(~inputs.mask_TS, 0)

    return LayerTrace(
        visible(weights),
        visible(content),
        visible(logits - content),
        {name: visible(values) for name, values in quantities.items()},
    )


def _unique(name: str, taken: dict[str, Tensor]) -> str:
    number = sum(name == other.partition(" of part ")[0] for other in taken)
    return f"{name} of part {number + 1}" if number else name
