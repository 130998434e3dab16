"""What every model is: a configuration, which is its yaml, and the network made from it.

Adding a model takes one file with a class of each kind and one yaml in conf/model/.

Shape letters: B batch, T tokens given, S tokens known, E width of the hidden states,
N scored places, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.common.dropout import Drop
from pe_lab.common.task import Task
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.pe.base import Dims, PositionalEncoding


@dataclass(frozen=True)
class Vocabulary:
    """The words of a task.

    Args:
        size: how many there are.
        separator: the number of the one that ends the input part, where the task has an input and
            an output part.
    """

    size: int
    separator: int | None = None


class Model(nn.Module, ABC):
    """Tokens to hidden states (``forward``), hidden states to logits (``unembed``)."""

    p: float = 0.0
    """The share that is dropped in training."""

    @property
    @abstractmethod
    def encodings(self) -> list[PositionalEncoding]:
        """The encoding of each place that has one, the same object where places share it."""

    @abstractmethod
    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Any = None,
        *,
        scored: ScoredPositions | None = None,
        key: int | Tensor | None = None,
    ) -> Tensor:
        """(B, T) tokens and the positions of all S tokens so far to hidden states (B, T, E).

        Args:
            cache: one of ``empty_cache``, which remembers the S - T tokens before.
            scored: return only these places' states, (N, E); without a cache.
            key: of the dropout masks (see dropout.py); None: drawn from torch's generator.
        """

    @abstractmethod
    def unembed(self, hidden: Tensor) -> Tensor:
        """(.., E) hidden states to (.., V) logits."""

    @abstractmethod
    def empty_cache(self) -> Any:
        """What to start decoding with.

        Raises:
            ValueError: an encoding needs the whole sequence at once.
        """

    def drop(self, key: int | Tensor | None) -> Drop | None:
        """What this pass drops, by its ``key``; None: nothing."""
        if not (self.training and self.p):
            return None
        return Drop(self.p, int(torch.randint(2**62, ())) if key is None else key)

    def kernels(self) -> dict[str, str] | None:
        """The kernel that serves each kind of attention that the encodings ask for; None where
        the model has none."""
        return None

    def names_of_parameters(self) -> dict[int, list[str]]:
        """The names of each parameter, by its id: several where modules hold it together, one where
        layers share the module."""
        names: dict[int, list[str]] = {}
        for path, module in self.named_modules():
            for name, p in module.named_parameters(recurse=False):
                names.setdefault(id(p), []).append(f"{path}.{name}".lstrip("."))
        return names

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """A model's sizes and choices. Its fields are its yaml's keys.

    A subclass is a frozen keyword-only dataclass that raises ValueError in ``__post_init__`` for
    values that do not fit together.
    """

    n_layers: PositiveInt
    d_model: PositiveInt

    @abstractmethod
    def build(
        self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding], fast: bool
    ) -> Model:
        """The model with its initial weights, drawn from torch's generator.

        Args:
            encodings: one for each layer that ``dims`` counts.
            fast: whether kernels and shortcuts may serve, equal to the formulas as written.
        """

    def dims(self, vocab_size: int, train_len: int, max_len: int) -> Dims:
        """The sizes that encodings are made for."""
        return Dims(self.d_model, 1, self.n_layers, vocab_size, train_len, max_len)

    def without(self) -> frozenset[int]:
        """The layers that go without the encoding."""
        return frozenset()

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        """Why an encoding makes no sense in this model, and what does: the end of a sentence that
        begins with pe=NAME; None where it does."""
        return None

    def refuses_task(self, task: Task) -> str | None:
        """The same of a task: the end of a sentence that begins with task=NAME."""
        return None

    def null_values(self) -> dict[str, Any]:
        """What keys of its yaml stand for where they are null: key -> value."""
        return {}

    def weights(self) -> int:
        """Roughly how many weights the model has: for a look at memory before any is made."""
        return 12 * self.n_layers * self.d_model**2


def refuse_whole(encodings: Sequence[PositionalEncoding]) -> None:
    """ValueError where one of them cannot be served by a key cache."""
    if any(encoding.whole_sequence for encoding in encodings):
        raise ValueError(
            "a key cache cannot serve an encoding that depends on the sequence's length"
        )
