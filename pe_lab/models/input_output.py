"""Models that read a task's input part as a whole before they write its output part.

Shape letters: B batch, T tokens given, S tokens known, P tokens of the longest input part and
U of the longest output part, the separator in both, E width of the hidden states, N scored
places.
"""

from abc import abstractmethod
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
import yaml
from hydra.utils import get_object
from torch import Tensor

from pe_lab.common.dropout import Drop
from pe_lab.common.task import Task
from pe_lab.models.base import Model, ModelConfig, refuse_whole_sequence
from pe_lab.models.scored_positions import ScoredPositions


@dataclass(frozen=True, kw_only=True)
class InputOutputConfig(ModelConfig):
    """What the two models have in common: the tasks that they are for."""

    def refuses_task(self, task: Task) -> str | None:
        if task.separator is None:
            names = ", ".join(_separated())
            return (
                "has no separator between an input and an output part, which this model reads "
                f"apart: choose a task that has one ({names}) or another model"
            )
        if task.loss_on == "all":
            return (
                "cannot have task.loss_on=all with this model, which answers in the output part "
                "only: set task.loss_on=scored"
            )
        return None


def _separated() -> list[str]:
    """The names of the tasks in conf/task that have a separator."""
    targets = {
        path.name.removesuffix(".yaml"): yaml.safe_load(path.read_text())["_target_"]
        for path in (resources.files("pe_lab.conf") / "task").iterdir()
        if path.name.endswith(".yaml")
    }
    return sorted(n for n, target in targets.items() if get_object(target).separator is not None)


@dataclass(frozen=True)
class Parts:
    """Sequences, apart at their separators, which end the input and begin the output.

    Args:
        separator_B: the place of each row's.
        input_BP: the tokens up to it; rows with fewer have it again in the places beyond.
        seen_BP: False in those; None: there are none.
        output_BU: the tokens from it on; rows with fewer have their last one again.
        pos_input_BP, pos_output_BU: their positions, (1 or B, ..); the output's count anew from
            the sequence's first position, as if it were a sequence of its own.
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
        scored: ScoredPositions | None = None,
    ) -> "Parts":
        """
        Args:
            scored: the output ends at the last of these places.

        Raises:
            ValueError: a row without a separator.
        """
        separator_B = _places(tokens_BT, separator)
        t = tokens_BT.shape[1]
        first, last = (int(place) for place in separator_B.aminmax())
        p, u = last + 1, t - first
        if scored is not None:
            row_N = torch.div(scored.at_N, t, rounding_mode="floor")
            nth_N = scored.at_N - row_N * t - separator_B[row_N]
            # A part of a batch may want nothing.
            u = max(1, int(nth_N.max()) + 1) if len(nth_N) else 1
        if first == last:
            end = first + u
            pos_output = counted_anew(pos_BT[:, :end], first)
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

    def placed(self, states_BUE: Tensor, t: int, scored: ScoredPositions | None) -> Tensor:
        """The output's states at the places of the whole sequences of t tokens, (B, T, E) or
        (N, E); 0 before the separator."""
        b, u, _ = states_BUE.shape
        at_N = torch.arange(b * t, device=states_BUE.device) if scored is None else scored.at_N
        row_N = torch.div(at_N, t, rounding_mode="floor")
        nth_N = at_N - row_N * t - self.separator_B[row_N]
        states_NE = states_BUE.flatten(0, 1)[row_N * u + nth_N.clamp(0, u - 1)]
        states_NE = torch.where((nth_N >= 0)[:, None], states_NE, 0)
        return states_NE if scored is not None else states_NE.view(b, t, -1)


def _places(tokens_BT: Tensor, separator: int) -> Tensor:
    """Where each row has its first separator, (B,)."""
    there_BT = tokens_BT == separator
    if not bool(there_BT.any(1).all()):
        raise ValueError(
            f"a sequence holds no separator (token {separator}), where the output part begins: "
            "give the whole input and its separator at once, to a new cache too"
        )
    return there_BT.int().argmax(1)


def counted_anew(pos_BS: Tensor, separator: int) -> Tensor:
    """The positions from the separator's place on, as if they began the sequence."""
    return pos_BS[:, separator:] - pos_BS[:, separator : separator + 1] + pos_BS[:, :1]


@dataclass
class OutputCache:
    """What is known once the input is read.

    Args:
        output: what the output part remembers of its own tokens.
        separator: the place of the separator; None: nothing is read yet.
        memory: what became of the input.
    """

    output: Any
    separator: int | None = None
    memory: Any = None


class InputOutput(Model):
    """Reads the input part up to its separator (``encode``), writes the output part from the
    separator on (``decode``). The hidden states of the input part are 0: nothing is asked there,
    and what the input's own states know comes after the places where they stand."""

    p: float
    """What is dropped."""
    separator: int

    @abstractmethod
    def encode(
        self, tokens_BP: Tensor, pos_BP: Tensor, seen_BP: Tensor | None, drop: Drop | None
    ) -> Any:
        """What the output part is to know of the input; ``seen_BP`` is that of ``Parts``."""

    @abstractmethod
    def decode(
        self, tokens_BU: Tensor, pos_BS: Tensor, memory: Any, drop: Drop | None, cache: Any
    ) -> Tensor:
        """(B, U) tokens of the output and the positions of all S of its tokens so far to hidden
        states (B, U, E)."""

    @abstractmethod
    def empty_output_cache(self) -> Any:
        """What ``decode`` starts with."""

    def empty_cache(self) -> OutputCache:
        refuse_whole_sequence(self.encodings)
        return OutputCache(self.empty_output_cache())

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: OutputCache | None = None,
        *,
        scored: ScoredPositions | None = None,
        key: int | None = None,
    ) -> Tensor:
        """As ``Model.forward``. The separator is looked for in the tokens, each row's first one
        counts. Rows with a cache have it at one place, and a new cache is given it at once.

        Raises:
            ValueError: a row without a separator, or rows with a cache that differ in its place.
        """
        drop = self.drop(key)
        if cache is not None:
            return self._continued(tokens_BT, pos_BS, cache, drop)
        # The masks of attention weights are those of rows of one length, and an encoding that
        # reads the length is to read all of it.
        whole = drop is not None or any(e.whole_sequence for e in self.encodings)
        parts = Parts.of(tokens_BT, pos_BS, self.separator, None if whole else scored)
        memory = self.encode(parts.input_BP, parts.pos_input_BP, parts.seen_BP, drop)
        states = self.decode(parts.output_BU, parts.pos_output_BU, memory, drop, None)
        return parts.placed(states, tokens_BT.shape[1], scored)

    def _continued(
        self, tokens_BT: Tensor, pos_BS: Tensor, cache: OutputCache, drop: Drop | None
    ) -> Tensor:
        if cache.separator is not None:
            pos_output = counted_anew(pos_BS, cache.separator)
            return self.decode(tokens_BT, pos_output, cache.memory, drop, cache.output)
        parts = Parts.of(tokens_BT, pos_BS, self.separator)
        if parts.seen_BP is not None:
            raise ValueError(
                "the separator stands at different places in these rows, which a cache cannot "
                "serve: give it rows with one length of the input at a time"
            )
        cache.separator = parts.input_BP.shape[1] - 1
        cache.memory = self.encode(parts.input_BP, parts.pos_input_BP, None, drop)
        states = self.decode(parts.output_BU, parts.pos_output_BU, cache.memory, drop, cache.output)
        return parts.placed(states, tokens_BT.shape[1], None)
