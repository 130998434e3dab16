"""``model.conv``: a short convolution over tokens, a key of every model.

Shape letters as in base.py; N taps of the filter.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from pe_lab.core.task import TRAIN, Task
from pe_lab.pe.functional import causal_filter

Place = Literal["embedding", "qkv"]
AttentionPlace = Literal["embedding", "q", "k", "v", "kv", "qkv"]
PARTS = {"q": (0, 1), "k": (1, 2), "v": (2, 3), "kv": (1, 3), "qkv": (0, 3), "embedding": (0, 0)}
"""Place -> which of (queries, keys, values) are convolved, as a slice: first, last + 1."""


class CausalConv(nn.Module):
    """Causal depthwise convolution over tokens with a residual, of each sequence by itself.

        y_i = x_i + sum over l of w_l * x_(i-l)      l = 0 .. N - 1,   x = 0 before the start

    The product is feature by feature. There is no bias and no activation, as in Canon layers
    (Allen-Zhu 2025, 2512.17351): their authors advise against both in transformers, and for the
    residual. (Convolutions of Mamba and Gated DeltaNet end in SiLU and have no residual.) They
    draw w as nn.Conv1d does. Here w starts at 0, so the model starts as the one without it.
    """

    def __init__(self, kernel: int, width: int) -> None:
        super().__init__()
        # Row n weighs the token N - 1 - n back.
        self.filter = nn.Parameter(torch.zeros(kernel, width))

    @property
    def reach(self) -> int:
        """How many tokens back it reads."""
        return len(self.filter) - 1

    def forward(self, x_BTE: Tensor) -> Tensor:
        return x_BTE + causal_filter(x_BTE, self.filter.to(x_BTE.dtype))


@dataclass(frozen=True, kw_only=True)
class ConvKeys:
    """The key ``conv`` of a model: the kernel size of a ``CausalConv`` of the token embeddings, in
    tokens, the current one included. With null there is no convolution.

    The convolution acts before an encoding does. In a model with an input and an output part it
    acts on each by itself, and is causal in the encoder too.
    """

    conv: Annotated[int, Field(ge=2)] | None = None

    @property
    def conv_place(self) -> AttentionPlace:
        """What is convolved."""
        return "embedding"

    def new_conv(self, place: AttentionPlace, width: int) -> CausalConv | None:
        """The convolution at this place of the model. None if the model has none here."""
        if self.conv is None or place != self.conv_place:
            return None
        return CausalConv(self.conv, width)

    def refuses_task(self, task: Task) -> str | None:
        """As in ``ModelConfig``: a filter must not be longer than the training sequences."""
        tokens = task.split(TRAIN).n_tokens
        if self.conv is None or self.conv <= tokens:
            return None
        return (
            f"has training sequences of {tokens} tokens, and model.conv={self.conv} reads more: "
            f"set model.conv to {tokens} or less"
        )


@dataclass(frozen=True, kw_only=True)
class AttentionConvKeys(ConvKeys):
    """``ConvKeys``, and ``conv_at``: what is convolved.

    ``qkv`` convolves the queries, keys and values of every self-attention, before any rotation
    (Canon-B; Primer, So 2021, 2109.08668). ``q``, ``k``, ``v`` and ``kv`` convolve these alone, in
    the transformer. ``embedding`` is as in ``ConvKeys``.
    """

    conv_at: AttentionPlace = "qkv"

    @property
    def conv_place(self) -> AttentionPlace:
        return self.conv_at
