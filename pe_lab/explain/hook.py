"""The one hook of attention: what an intervention changes in a forward pass, and what it reads.

Shape letters as in pe/base.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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

    @property
    def content(self) -> Tensor:
        """q_i . k_j / sqrt(D) of rotated queries and keys, (B, H, T, S)."""
        content: Tensor = (self.q_BHTD * self.q_BHTD.shape[-1] ** -0.5) @ self.k_BHSD.mT
        return content


Change = Callable[[Tensor, LayerAttention], Tensor]


def keep_values(values: Tensor, seen: LayerAttention) -> Tensor:
    """No change."""
    return values


@dataclass(frozen=True)
class Intervention:
    """What is changed in every layer: the logits before the mask, and the weights after it, both
    (B, H, T, S)."""

    logits: Change = keep_values
    weights: Change = keep_values


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

    def hooked(layer: int, attention: Attention) -> Callable[..., tuple[Tensor, Tensor]]:
        plain = attention.weights

        def weights(q: Tensor, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
            seen = LayerAttention(layer, attention, q, k, inputs)
            logits = intervention.logits(plain(q, k, inputs)[0], seen)
            changed = intervention.weights(attention.normalize(logits, inputs), seen)
            if read is not None:
                read(logits, changed, seen)
            return logits, changed

        return weights

    try:
        for number, attention in enumerate(layers):
            attention.weights = hooked(number, attention)  # type: ignore[method-assign]
        yield
    finally:
        for attention in layers:
            vars(attention).pop("weights", None)
