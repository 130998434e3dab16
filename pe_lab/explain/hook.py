"""The hooks of a pass: what an intervention changes in attention and in recurrences, and what it
reads.

Shape letters as in pe/base.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from pe_lab.models.attention import Attention
from pe_lab.models.base import Mixer, Model
from pe_lab.models.mixers import RecurrentMixer
from pe_lab.pe.base import AttentionInputs


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer, as an intervention sees it: rotated queries and keys, and what
    the encoding read.

    Args:
        layer: its number among all layers, those without attention too.
    """

    layer: int
    attention: Attention
    q_BHTD: Tensor
    k_BHSD: Tensor
    inputs: AttentionInputs


Change = Callable[[Tensor, LayerAttention], Tensor]
Mix = Callable[[Tensor], Tensor]
"""A recurrent mixer that begins with an empty state, (B, T, E) to (B, T, E)."""


@dataclass(frozen=True)
class Intervention:
    """What is changed in every layer: of attention the logits before the mask, and the weights
    after it, both (B, H, T, S); without attention how it mixes its input."""

    logits: Change = lambda values, seen: values
    weights: Change = lambda values, seen: values
    recurrence: Callable[[Tensor, Mix], Tensor] = lambda x_BTE, mix: mix(x_BTE)


Reading = Callable[[Tensor, Tensor, LayerAttention], None]


@contextmanager
def apply_intervention(
    model: Model, intervention: Intervention, read: Reading | None = None
) -> Iterator[None]:
    """Within this context each pass of a plain model is one with the intervention.

    Args:
        read: called with the changed logits and weights of every layer, lowest first.
    """
    layers = [module for module in model.modules() if isinstance(module, Mixer)]

    def weights(
        layer: int, attention: Attention, q: Tensor, k: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        seen = LayerAttention(layer, attention, q, k, inputs)
        logits = intervention.logits(type(attention).weights(attention, q, k, inputs)[0], seen)
        changed = intervention.weights(attention.normalize(logits, inputs), seen)
        if read is not None:
            read(logits, changed, seen)
        return logits, changed

    def mix(mixer: RecurrentMixer, x_BTE: Tensor, cache: None) -> Tensor:
        return intervention.recurrence(x_BTE, lambda x: type(mixer).mix(mixer, x, cache))

    try:
        for number, layer in enumerate(layers):
            if isinstance(layer, Attention):
                layer.weights = partial(weights, number, layer)  # type: ignore[method-assign]
            elif isinstance(layer, RecurrentMixer):
                layer.mix = partial(mix, layer)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers:
            for name in ("weights", "mix"):
                vars(layer).pop(name, None)
