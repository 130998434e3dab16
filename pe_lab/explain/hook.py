"""The one hook of attention: what an intervention changes in a forward pass, and what it reads.

Shape letters as in pe/base.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from pe_lab.models.attention import Attention
from pe_lab.models.base import Model
from pe_lab.pe.base import AttentionInputs


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer, as an intervention sees it: rotated queries and keys, and what
    the encoding read."""

    layer: int
    attention: Attention
    q_BHTD: Tensor
    k_BHSD: Tensor
    inputs: AttentionInputs


Change = Callable[[Tensor, LayerAttention], Tensor]


@dataclass(frozen=True)
class Intervention:
    """What is changed in every layer: the logits before the mask, and the weights after it, both
    (B, H, T, S)."""

    logits: Change = lambda values, seen: values
    weights: Change = lambda values, seen: values


Reading = Callable[[Tensor, Tensor, LayerAttention], None]


@contextmanager
def apply_intervention(
    model: Model, intervention: Intervention, read: Reading | None = None
) -> Iterator[None]:
    """Within this context each pass of a plain model is one with the intervention.

    Args:
        read: called with the changed logits and weights of every layer, lowest first.
    """
    layers = [module for module in model.modules() if isinstance(module, Attention)]

    def weights(
        layer: int, attention: Attention, q: Tensor, k: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        seen = LayerAttention(layer, attention, q, k, inputs)
        logits = intervention.logits(type(attention).weights(attention, q, k, inputs)[0], seen)
        changed = intervention.weights(attention.normalize(logits, inputs), seen)
        if read is not None:
            read(logits, changed, seen)
        return logits, changed

    try:
        for number, attention in enumerate(layers):
            attention.weights = partial(weights, number, attention)  # type: ignore[method-assign]
        yield
    finally:
        for attention in layers:
            vars(attention).pop("weights", None)
