"""``model=outside``: a module that was written elsewhere, from tokens to logits.

Shape letters: B batch, T new tokens, S tokens so far, V vocabulary.
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.core.errors import UsageError, is_out_of_memory
from pe_lab.core.instantiate import failure, imported
from pe_lab.models.base import Model, pick
from pe_lab.models.config import ModelConfig, Vocabulary
from pe_lab.models.kv_cache import TokenCache
from pe_lab.pe.base import PositionalEncoding

SIZES = ("vocab_size", "train_len", "max_len")
"""What a factory is called with, as far as its signature names it."""
OWN_POSITIONS = "has no effect on a model from outside, which has its own positions: set pe=none"
"""Said before an encoding is made: such a model has no heads that one could fit."""


@dataclass(frozen=True, kw_only=True)
class OutsideConfig(ModelConfig):
    """A module from tokens (B, T) to logits (B, T, V), or to an object with ``logits``.

        factory(vocab_size=.., train_len=.., max_len=.., **arguments) -> nn.Module

    ``max_len`` is the length of the longest measured sequences; a factory without ``train_len`` or
    ``max_len`` in its signature is called without it. The weights that the factory draws from
    torch's generator are those of the seed. The module has positions of its own, so pe=none is the
    only choice. A module with a method ``empty_cache()`` is called as ``module(tokens, cache=..)``
    in decoding; for one without it, all tokens are computed again.
    """

    factory: str | None
    label: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    n_layers: int = field(default=1, init=False)
    d_model: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        module, colon, function = (self.factory or "").partition(":")
        if not (module and colon and function.isidentifier()):
            raise UsageError(
                f"model.factory={self.factory or 'null'} names no function: give "
                "model.factory=package.module:function, which makes the model"
            )
        if given := [size for size in SIZES if size in self.arguments]:
            raise UsageError(
                f"model.arguments.{given[0]}={self.arguments[given[0]]} is not allowed, the task "
                "decides it: leave it out"
            )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}", self.entry()):
            raise UsageError(
                f"model.label={self.entry()} is not allowed, it also names folders: give at most "
                "40 letters, digits, _, - and ., and begin with a letter"
            )

    @property
    def word(self) -> str:
        return f"model.factory={self.factory}"

    def entry(self) -> str:
        return self.label or (self.factory or "").rpartition(":")[2]

    def null_values(self) -> dict[str, Any]:
        return {"label": self.entry()}

    def weights(self) -> int:
        return 0

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        if not encoding.hooks():
            return None
        return OWN_POSITIONS

    def build(self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]) -> "Outside":
        module = self._made(vocabulary)
        if not isinstance(module, nn.Module):
            raise UsageError(
                f"{self.word} returns a {type(module).__name__}: return a torch.nn.Module"
            )
        kinds = {parameter.dtype for parameter in module.parameters()}
        if kinds != {torch.get_default_dtype()}:
            found = ", ".join(sorted(map(str, kinds))) or "no parameters"
            raise UsageError(
                f"{self.word} returns a module with {found}: give all its parameters the type "
                f"{torch.get_default_dtype()}"
            )
        model = Outside(module, encodings[0], vocabulary.max_len)
        self._check(model, vocabulary)
        return model

    def _made(self, vocabulary: Vocabulary) -> Any:
        factory = imported((self.factory or "").replace(":", "."), self.word)
        try:
            signature = inspect.signature(factory)
            kinds = {parameter.kind for parameter in signature.parameters.values()}
            every = inspect.Parameter.VAR_KEYWORD in kinds
            sizes = dict(
                zip(SIZES, (vocabulary.size, vocabulary.train_len, vocabulary.max_len), strict=True)
            )
            taken = {k: v for k, v in sizes.items() if every or k in signature.parameters}
            signature.bind(**{"vocab_size": vocabulary.size, **taken, **self.arguments})
        # ValueError: some functions of Python itself have no signature.
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self.word} does not fit its arguments ({error}): it is called with vocab_size, "
                "train_len and max_len if it names them, and model.arguments"
            ) from None
        try:
            return factory(**taken, **self.arguments)
        except (Exception, SystemExit) as error:
            raise UsageError(f"{failure(self.word, error)}; correct it there") from None

    def _check(self, model: "Outside", vocabulary: Vocabulary) -> None:
        """Refuse a module that does not compute logits of the lengths that the run has."""
        pos = torch.zeros(1, 1)
        model.eval()
        for shape in ((2, vocabulary.train_len), (1, vocabulary.max_len)):
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    found = model(torch.zeros(shape, dtype=torch.long), pos)
            except UsageError:
                raise
            except Exception as error:
                raise UsageError(
                    f"{failure(self.word, error)}, with tokens of shape {shape}; correct it there"
                ) from None
            if model.caches:
                self._check_cache(model)
            expected = (*shape, vocabulary.size)
            if tuple(found.shape) != expected or not found.is_floating_point():
                raise UsageError(
                    f"{self.word}: its module returns {tuple(found.shape)} {found.dtype} for "
                    f"tokens {shape}: return logits {expected}, tokens x vocabulary"
                )
        model.train()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            found = model(torch.zeros(2, vocabulary.train_len, dtype=torch.long), pos)
        if not found.requires_grad:
            raise UsageError(
                f"{self.word}: no parameter of its module has a gradient: do not freeze all of "
                "them, nor detach the logits"
            )

    def _check_cache(self, model: "Outside") -> None:
        """Refuse a module that makes a cache and cannot be called with it."""
        try:
            inspect.signature(model.module.forward).bind(None, cache=None)
        except TypeError as error:
            raise UsageError(
                f"{self.word}: its module has empty_cache() and cannot be called as module(tokens, "
                f"cache=..) ({error}): add cache to forward, or leave empty_cache() out"
            ) from None


class Outside(Model):
    """The module. Its logits are used in place of hidden states.

    Args:
        max_len: the most tokens that its factory was told of.
    """

    def __init__(self, module: nn.Module, encoding: PositionalEncoding, max_len: int) -> None:
        super().__init__()
        self.module = module
        self.encoding = encoding
        self.max_len = max_len

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return [self.encoding]

    @property
    def caches(self) -> bool:
        """Whether the module has a cache for decoding."""
        return callable(getattr(self.module, "empty_cache", None))

    def empty_cache(self) -> Any:
        return self.module.empty_cache() if self.caches else TokenCache()  # type: ignore[operator]

    def unembed(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Any = None,
        *,
        scored: Tensor | None = None,
    ) -> Tensor:
        if cache is not None and self.caches:
            return self._called(pos_BS.shape[1], tokens_BT, cache=cache)
        t = tokens_BT.shape[1]
        if cache is not None:
            tokens_BT = cache.tokens_BS.extend(tokens_BT)
        return pick(self._called(tokens_BT.shape[1], tokens_BT)[:, -t:], scored)

    def _called(self, length: int, tokens_BT: Tensor, **cache: Any) -> Tensor:
        """The module's logits; UsageError where it fails on more tokens than it was made for."""
        try:
            return _logits(self.module(tokens_BT, **cache))
        except (IndexError, RuntimeError) as error:
            if length <= self.max_len or is_out_of_memory(error):
                raise
            raise UsageError(
                f"model.factory: its module was made for {self.max_len} tokens and fails on "
                f"{length} ({error}): give shorter sequences"
            ) from None


def _logits(returned: Any) -> Tensor:
    """Models of Hugging Face return an object with ``logits``."""
    logits = getattr(returned, "logits", returned)
    if not isinstance(logits, Tensor):
        raise UsageError(
            f"model.factory: its module returns a {type(logits).__name__}: return logits, tokens x "
            "vocabulary"
        )
    return logits
