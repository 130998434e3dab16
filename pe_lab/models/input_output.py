"""The base of encoder-decoder models, which encode a task's input part before they decode its
output part.

Shape letters: B batch, T new tokens, S tokens so far, P tokens of the longest input part and U of
the longest output part, both including the separator, E width of the hidden states, N scored
positions.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pe_lab.core.task import Task
from pe_lab.models.base import Model, refuse_whole_sequence
from pe_lab.models.config import ModelConfig
from pe_lab.models.conv import ConvKeys


@dataclass(frozen=True, kw_only=True)
class InputOutputConfig(ConvKeys, ModelConfig):
    """The configuration of a model with an encoder and a decoder."""

    restarts_positions: ClassVar[bool] = True

    def refuses_task(self, task: Task) -> str | None:
        if task.separator is None:
            return (
                "has no separator between an input and an output part, which this model reads "
                "separately: choose a task that has one, such as copy, or another model"
            )
        if task.loss_on == "all":
            return (
                "cannot have task.loss_on=all with this model, which only predicts the output "
                "part: set task.loss_on=scored"
            )
        return super().refuses_task(task)


@dataclass(frozen=True)
class Parts:
    """Sequences split at their separators, which end the input part and begin the output part.

    Args:
        separator_B: the index of the separator in each row.
        input_BP: the tokens up to it; shorter rows are padded with the separator.
        seen_BP: False for padding; None: there is no padding.
        output_BU: the tokens from it on; shorter rows are padded with their last token.
        pos_input_BP, pos_output_BU: their positions, (1 or B, ..); the output's start again from
            the sequence's first position, as if it were a separate sequence.
    """

    separator_B: Tensor
    input_BP: Tensor
    seen_BP: Tensor | None
    output_BU: Tensor
    pos_input_BP: Tensor
    pos_output_BU: Tensor

    @classmethod
    def of(
        cls,
        tokens_BT: Tensor,
        pos_BT: Tensor,
        separator: int,
        scored: Tensor | None = None,
    ) -> "Parts":
        """
        Args:
            scored: the output ends at the last of these positions.

        Raises:
            ValueError: a row has no separator.
        """
        separator_B = _first_separator(tokens_BT, separator)
        t = tokens_BT.shape[1]
        first, last = (int(place) for place in separator_B.aminmax())
        p, u = last + 1, t - first
        if scored is not None:
            row_N = torch.div(scored, t, rounding_mode="floor")
            nth_N = scored - row_N * t - separator_B[row_N]
            # A microbatch may have no scored position.
            u = max(1, int(nth_N.max()) + 1) if len(nth_N) else 1
        if first == last:
            end = first + u
            pos_output = restarted_positions(pos_BT[:, :end], first)
            return cls(
                separator_B, tokens_BT[:, :p], None, tokens_BT[:, first:end], pos_BT[:, :p],
                pos_output,
            )  # fmt: skip
        separator_B1 = separator_B[:, None]
        places = torch.arange(t, device=tokens_BT.device)
        input_BP = places[:p].minimum(separator_B1)
        output_BU = (separator_B1 + places[:u]).clamp(max=t - 1)
        pos_BT = pos_BT.expand_as(tokens_BT)
        pos_output = pos_BT.gather(1, output_BU) - pos_BT.gather(1, separator_B1) + pos_BT[:, :1]
        return cls(
            separator_B, tokens_BT.gather(1, input_BP), places[:p] <= separator_B1,
            tokens_BT.gather(1, output_BU), pos_BT.gather(1, input_BP), pos_output,
        )  # fmt: skip

    def place_states(self, states_BUE: Tensor, t: int, scored: Tensor | None) -> Tensor:
        """The output's states at their indices in the whole sequences of t tokens, (B, T, E) or
        (N, E); 0 before the separator."""
        b, u, _ = states_BUE.shape
        at_N = torch.arange(b * t, device=states_BUE.device) if scored is None else scored
        row_N = torch.div(at_N, t, rounding_mode="floor")
        nth_N = at_N - row_N * t - self.separator_B[row_N]
        states_NE = states_BUE.flatten(0, 1)[row_N * u + nth_N.clamp(0, u - 1)]
        states_NE = torch.where((nth_N >= 0)[:, None], states_NE, 0)
        return states_NE if scored is not None else states_NE.view(b, t, -1)


def _first_separator(tokens_BT: Tensor, separator: int) -> Tensor:
    """The index of the first separator in each row, (B,)."""
    is_separator_BT = tokens_BT == separator
    if not bool(is_separator_BT.any(1).all()):
        raise ValueError(
            f"a sequence holds no separator (token {separator}), where the output part begins: "
            "pass the whole input with its separator in one call, with a new cache too"
        )
    return is_separator_BT.int().argmax(1)


def restarted_positions(pos_BS: Tensor, separator: int) -> Tensor:
    """The positions from the separator on, shifted to start at the sequence's first position."""
    return pos_BS[:, separator:] - pos_BS[:, separator : separator + 1] + pos_BS[:, :1]


@dataclass
class OutputCache:
    """The cache of decoding after an encoded input.

    Args:
        output: the decoder's cache.
        separator: the index of the separator; None: no input has been encoded yet.
        memory: the encoded input.
    """

    output: Any
    separator: int | None = None
    memory: Any = None


class InputOutput(Model):
    """Encodes the input part up to its separator (``encode``) and decodes the output part from the
    separator on (``decode``). The hidden states returned for the input part are 0: nothing is
    scored there, and the encoder's states would depend on later tokens."""

    separator: int

    @abstractmethod
    def encode(self, tokens_BP: Tensor, pos_BP: Tensor, seen_BP: Tensor | None) -> Any:
        """The encoded input, the ``memory`` of ``decode``; ``seen_BP`` is that of ``Parts``."""

    @abstractmethod
    def decode(self, tokens_BU: Tensor, pos_BS: Tensor, memory: Any, cache: Any) -> Tensor:
        """(B, U) tokens of the output and the positions of all S of its tokens so far to hidden
        states (B, U, E)."""

    @abstractmethod
    def empty_output_cache(self) -> Any:
        """The decoder's cache before the first token."""

    def empty_cache(self) -> OutputCache:
        refuse_whole_sequence(self.encodings)
        return OutputCache(self.empty_output_cache())

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: OutputCache | None = None,
        *,
        scored: Tensor | None = None,
    ) -> Tensor:
        """As ``Model.forward``, split at the first separator of each row. With a cache, all rows
        have it at the same index, and the first call includes it.

        Raises:
            ValueError: a row has no separator, or with a cache its index differs between rows.
        """
        if cache is not None:
            return self._forward_with_cache(tokens_BT, pos_BS, cache)
        # An encoding that depends on the length needs the full length.
        whole = any(e.whole_sequence for e in self.encodings)
        parts = Parts.of(tokens_BT, pos_BS, self.separator, None if whole else scored)
        memory = self.encode(parts.input_BP, parts.pos_input_BP, parts.seen_BP)
        states = self.decode(parts.output_BU, parts.pos_output_BU, memory, None)
        return parts.place_states(states, tokens_BT.shape[1], scored)

    def _forward_with_cache(self, tokens_BT: Tensor, pos_BS: Tensor, cache: OutputCache) -> Tensor:
        if cache.separator is not None:
            pos_output = restarted_positions(pos_BS, cache.separator)
            return self.decode(tokens_BT, pos_output, cache.memory, cache.output)
        parts = Parts.of(tokens_BT, pos_BS, self.separator)
        if parts.seen_BP is not None:
            raise ValueError(
                "the separator is at different positions in these rows, which a cache does not "
                "support: pass rows whose inputs have the same length"
            )
        cache.separator = parts.input_BP.shape[1] - 1
        cache.memory = self.encode(parts.input_BP, parts.pos_input_BP, None)
        states = self.decode(parts.output_BU, parts.pos_output_BU, cache.memory, cache.output)
        return parts.place_states(states, tokens_BT.shape[1], None)
