"""What all checks of the contract share: outcomes, tiny models, their inputs, and measures.

A check is a function. It returns one sentence with numbers if the point is kept, raises
``AssertionError`` with one if it is broken, and ``NotClaimedError`` if the point does not apply.

Numbers are of torch's default type: ``exact`` makes that float64, so that agreement is a matter of
formulas, not of rounding.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from hydra.utils import get_object
from torch import Tensor, nn

from pe_lab.config.compose import fill_parts
from pe_lab.core.errors import UsageError, reason
from pe_lab.core.validation import instantiate
from pe_lab.models.base import Model
from pe_lab.models.config import ModelConfig, Vocabulary
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train.encodings import build_encodings, use_kernels

EVERY_KEY = "every key changes something"


class NotClaimedError(Exception):
    """A point does not apply; the message says why."""


def require(true: bool | Tensor, otherwise: str) -> None:
    """Raises AssertionError with this sentence, unless something is true."""
    if not true:
        raise AssertionError(otherwise)


@dataclass(frozen=True)
class Outcome:
    """The result of a check.

    Args:
        name: the point, in a few words.
        sentence: the finding, with numbers.
    """

    name: str
    state: Literal["pass", "fail", "not claimed"]
    sentence: str


def outcome(name: str, check: Callable[[], str]) -> Outcome:
    """Runs a check. An exception of the checked code breaks the contract, too."""
    try:
        return Outcome(name, "pass", check())
    except NotClaimedError as error:
        return Outcome(name, "not claimed", str(error))
    except (AssertionError, UsageError) as error:
        return Outcome(name, "fail", str(error))
    except Exception as error:
        return Outcome(name, "fail", f"{type(error).__name__}: {reason(error)}")


Section = dict[str, Any]
"""The keys of an encoding, a task or a model, with its ``_target_``."""
TRAIN_LEN, MAX_LEN, VOCAB, SEPARATOR, PLACE = 12, 48, 11, 10, 4
"""Tokens, positions, words, the separator of two parts and its place."""
HEADS = 2
NONE: Section = {"_target_": "pe_lab.pe.none.NoPE"}
TRANSFORMER = {
    **{"n_layers": 3, "n_heads": HEADS, "d_model": 16, "d_ff": 24, "dropout": 0.0},
    **{"norm": "layernorm", "norm_position": "pre", "activation": "gelu"},
    "tied_embeddings": False,
}
"""The keys of the tiny transformer."""
OF_MODELS: dict[str, list[Any]] = {
    "layers": [{0: {"d_ff": 8}}, {0: {"n_heads": 1}}, {0: {"activation": "gelu"}}],
    "pattern": [["kda"], ["conv", "attention"]],
    "dropout": [0.3],
}
"""Other values of keys of models."""


@contextmanager
def exact() -> Iterator[None]:
    """Computes in float64 on one thread, as the tensors are tiny. The random state of the process
    stays as it is."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


def build_transformer(
    pe: Section,
    seed: int = 0,
    fast: bool = True,
    train_len: int = TRAIN_LEN,
    max_len: int = MAX_LEN,
    **keys: Any,
) -> Transformer:
    """The tiny transformer with an encoding. Its trunk depends on the seed alone.

    Args:
        fast: with the kernels.
        keys: those of the transformer that differ.
    """
    built: Any = _build(
        TransformerConfig(**{**TRANSFORMER, **keys}), pe, seed, fast, train_len, max_len
    )
    # Larger queries and keys: at their initial size attention is nearly uniform.
    for block in built.blocks:
        block.attention.qkv.weight.data.mul_(3)
    return built


def build_model(
    section: Section,
    pe: Section = NONE,
    seed: int = 0,
    fast: bool = True,
    train_len: int = TRAIN_LEN,
    max_len: int = MAX_LEN,
    **keys: Any,
) -> Model:
    """The model with all parameters moved, because one that is zero hides its effect.

    Raises:
        UsageError: it refuses the encoding or a value.
    """
    built = _build(model_config(section, **keys), pe, seed, fast, train_len, max_len)
    torch.manual_seed(seed + 2)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if "encoding" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return built


def model_config(section: Section, **changes: Any) -> ModelConfig:
    return instantiate({**section, **changes}, "model", ModelConfig)


def _build(
    cfg: ModelConfig, pe: Section, seed: int, fast: bool, train_len: int, max_len: int
) -> Model:
    torch.manual_seed(seed)
    encodings = build_encodings(
        pe, cfg.dims(VOCAB, train_len, max_len), cfg.layers_without_encoding()
    )
    for encoding in dict.fromkeys(encodings):
        if refusal := cfg.refuses(encoding):
            raise UsageError(f"pe {refusal}")
        move_parameters(encoding)
    torch.manual_seed(seed + 100)
    built = cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings)
    if fast:
        use_kernels(built)
    return built


@torch.no_grad()
def move_parameters(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.5)


def reach(encodings: list[PositionalEncoding], length: int = MAX_LEN) -> int:
    """The number of positions to test: this many, or as many as the encodings have."""
    return min([length, *(e.max_len for e in encodings if e.max_len is not None)])


def tokens(n: int = 2, length: int = TRAIN_LEN) -> Tensor:
    """Rows of words with the separator at one place."""
    drawn = torch.randint(0, SEPARATOR, (n, length), generator=torch.Generator().manual_seed(7))
    drawn[:, PLACE : PLACE + 1] = SEPARATOR
    return drawn


def sequential(length: int = TRAIN_LEN, offset: int = 0) -> Tensor:
    return torch.arange(offset, offset + length)[None]


def scattered(n: int, length: int, limit: int) -> Tensor:
    """A sorted random subset of 0 .. limit-1 for each of n sequences."""
    keys = torch.rand(n, limit, generator=torch.Generator().manual_seed(3))
    return keys.argsort(-1)[:, :length].sort(-1).values


def in_pieces(built: Any, sequence: Tensor, pos: Tensor, *pieces: int) -> Tensor:
    """Hidden states with a cache: ``pieces`` tokens at a time, then the others one by one."""
    cache = built.empty_cache()
    ends = [0, *(end for end in accumulate(pieces) if end <= sequence.shape[1])]
    ends += range(ends[-1] + 1, sequence.shape[1] + 1)
    return torch.cat([built(sequence[:, a:b], pos[:, :b], cache) for a, b in pairwise(ends)], 1)


def cache_gap(built: Any, sequence: Tensor, pos: Tensor, *pieces: int) -> float:
    """The largest difference between decoding in these pieces and the whole pass.

    Raises:
        AssertionError: it is more than rounding.
    """
    with torch.inference_mode():
        steps, whole = in_pieces(built, sequence, pos, *pieces), built(sequence, pos)
    return agree(
        steps,
        whole,
        1e-10,
        "decoding with a key cache (read pos_q and pos_k as passed) changes states",
    )


def change_after(sequence: Tensor, t: int) -> Tensor:
    """A copy of the tokens with other tokens after the place t."""
    later = torch.arange(sequence.shape[1]) > t
    return torch.where(later, (sequence + 1) % SEPARATOR, sequence)


def loss(hidden: Tensor) -> Tensor:
    """A number that depends on all hidden states; their sum is constant after the last norm."""
    weight = torch.linspace(-1, 1, hidden.shape[-1]).to(hidden)
    return (hidden * weight).sin().sum()


def gradients(built: nn.Module, out: Tensor) -> list[Tensor]:
    """The gradients of ``loss`` by every parameter; zero where it does not depend on one."""
    return list(torch.autograd.grad(loss(out), list(built.parameters()), materialize_grads=True))


def largest(x: Tensor) -> float:
    """The largest absolute value; not finite if one is not."""
    return float(x.detach().abs().max()) if x.numel() else 0.0


def agree(one: Tensor, other: Tensor, tolerance: float, otherwise: str) -> float:
    """The largest difference of two tensors.

    Raises:
        AssertionError: one is beyond ``tolerance (1 + |other|)``.
    """
    gap = largest(one - other)
    require(torch.allclose(one, other, rtol=tolerance, atol=tolerance), f"{otherwise} by {gap:.1e}")
    return gap


def other_values(section: Section, key: str) -> list[Any]:
    """Other values of a key: the other choices, or other numbers to try."""
    if key in OF_MODELS:
        return OF_MODELS[key]
    value = section[key]
    hint = get_type_hints(get_object(section["_target_"]).__init__).get(key)
    literals = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal]
    if literals:
        return [choice for kind in literals for choice in get_args(kind) if choice != value]
    if key == "parts":
        return [
            parts("learned", "t5"),
            parts({"pe": "rope", "layers": [0, 2]}, {"pe": "alibi", "learned": True}),
            parts("shaw", "relative", {"pe": "cope", "layers": [1]}),
        ]
    if isinstance(value, bool) or (value is None and bool in get_args(hint)):
        return [not value]
    if value is None and type(None) in get_args(hint):
        # A window or convolution is below the length. Rounding of large logits would be taken for
        # a fault.
        small = {"width": 5, "window": 4, "conv": 3, "heads": 2, "attention_factor": 2}
        return [small.get(key, MAX_LEN + 5)]
    if key == "base" and value >= 1000:
        # A base of frequencies: few features have several within the trained length (FoPE).
        return [value / 1000, value / 2000]
    if isinstance(value, (int, float)):
        return [other for other in (2 * value + 1, value / 2) if other != value]
    return []


def parts(*written: str | dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a combined encoding as the command line would fill them in."""
    return list(fill_parts({"parts": list(written)})["parts"])


def choices(section: Section) -> dict[str, Section]:
    """An encoding's section as it is, and with each other choice of one key that is not a number.

    The names are those of the command line: ``""``, ``pairing=half``, ..
    """
    sections = {"": section}
    for key, value in section.items():
        if key == "_target_" or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            continue
        for other in other_values(section, key):
            with suppress(UsageError):
                build_transformer({**section, key: other}, fast=False)
                sections[f"{key}={as_word(other)}"] = {**section, key: other}
    return sections


def as_word(value: Any) -> str:
    """A value as part of a name: ``true``, ``half``, ``learned+t5``."""
    if isinstance(value, list):
        return "+".join(str(part["pe"] if isinstance(part, dict) else part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def try_keys(
    section: Section,
    changes: Callable[[str, Any], bool | None],
    enough: Callable[[Iterable[bool]], bool] = all,
) -> str:
    """A sentence with the values of each key that were tried.

    Args:
        changes: whether a value of a key changes something; None: it is refused.
        enough: whether ``all`` values of a key must change something, or ``any``.

    Raises:
        AssertionError: a key changes nothing.
        NotClaimedError: no key has another value to try.
    """
    words: dict[str, list[str]] = {}
    for key in (key for key in section if key != "_target_"):
        found = {as_word(value): changes(key, value) for value in other_values(section, key)}
        tried = {word: changed for word, changed in found.items() if changed is not None}
        idle = "|".join(word for word, changed in tried.items() if not changed)
        require(
            not tried or enough(tried.values()),
            f"{key}={idle} computes or draws the same as {key}={as_word(section[key])}",
        )
        words[key] = list(tried)
    done = [f"{key}={'|'.join(tried)}" for key, tried in words.items() if tried]
    untried = ", ".join(key for key, tried in words.items() if not tried)
    left = f"no other value to try of {untried}"
    if not done:
        raise NotClaimedError(left if untried else "it has no keys")
    return f"tried {', '.join(done)}" + (f"; {left}" if untried else "")
