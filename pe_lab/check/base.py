"""What all checks of the contract share: outcomes, the tiny transformer, other values of keys.

A check is a function. It returns one sentence with numbers if the point is kept, raises
``ContractError`` with one if it is broken, and ``NotClaimedError`` if the point does not apply.

Numbers are of torch's default type: ``exact`` makes that float64, so that agreement is a matter of
formulas, not of rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from hydra.utils import get_object
from torch import Tensor, nn

from pe_lab.config.compose import fill_parts
from pe_lab.core.errors import UsageError
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.train.encodings import build_encodings, use_kernels


class ContractError(AssertionError):
    """The contract is broken; the message is one sentence."""


class NotClaimedError(Exception):
    """A point does not apply; the message says why."""


def require(true: bool | Tensor, otherwise: str) -> None:
    """Raises ContractError with this sentence, unless something is true."""
    if not true:
        raise ContractError(otherwise)


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
    except (ContractError, UsageError) as error:
        return Outcome(name, "fail", str(error))
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        return Outcome(name, "fail", f"{type(error).__name__}: {first_line}")


Section = dict[str, Any]
"""The keys of an encoding, a task or a model, with its ``_target_``."""
TRAIN_LEN, MAX_LEN, VOCAB = 12, 48, 11
NONE: Section = {"_target_": "pe_lab.pe.none.NoPE"}


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


def dims(**changes: Any) -> Dims:
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_layers": 3, "vocab_size": VOCAB}
    return Dims(**{**sizes, "train_len": TRAIN_LEN, "max_len": MAX_LEN, **changes})


def model(
    section: Section,
    seed: int = 0,
    trunk: dict[str, Any] | None = None,
    fast: bool = True,
    **sizes: Any,
) -> Transformer:
    """The tiny model. Its trunk depends on the seed alone. Parameters of its encoding are moved:
    one that is zero would hide its effect.

    Args:
        trunk: keys of the model that differ.
        fast: with the kernels.
    """
    size = dims(**sizes)
    keys: dict[str, Any] = {
        "n_layers": size.n_layers,
        "n_heads": size.n_heads,
        "d_model": size.d_model,
        "d_ff": 24,
        "dropout": 0.0,
        "norm": "layernorm",
        "norm_position": "pre",
        "activation": "gelu",
        "tied_embeddings": False,
    }
    cfg = TransformerConfig(**{**keys, **(trunk or {})})
    torch.manual_seed(seed)
    encodings = build_encodings(section, size)
    for encoding in dict.fromkeys(encodings):
        move_parameters(encoding)
    torch.manual_seed(seed + 100)
    built = Transformer(cfg, size.vocab_size, encodings)
    if fast:
        use_kernels(built)
    # Larger queries and keys: at their initial size attention is nearly uniform.
    for block in built.blocks:
        block.attention.qkv.weight.data.mul_(3)
    return built


@torch.no_grad()
def move_parameters(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.5)


def reach(encodings: list[PositionalEncoding]) -> int:
    """The number of positions to test: MAX_LEN, or as many as the encodings have."""
    return min([MAX_LEN, *(e.max_len for e in encodings if e.max_len is not None)])


def tokens(n: int, length: int, seed: int = 7) -> Tensor:
    return torch.randint(0, VOCAB, (n, length), generator=torch.Generator().manual_seed(seed))


def sequential(length: int, offset: int = 0) -> Tensor:
    return torch.arange(offset, offset + length)[None]


def scattered(n: int, length: int, limit: int, seed: int = 3) -> Tensor:
    """A sorted random subset of 0 .. limit-1 for each of n sequences."""
    keys = torch.rand(n, limit, generator=torch.Generator().manual_seed(seed))
    return keys.argsort(-1)[:, :length].sort(-1).values


def in_pieces(built: Any, sequence: Tensor, pos: Tensor, *pieces: int) -> Tensor:
    """Hidden states with a cache: ``pieces`` tokens at a time, then the others one by one."""
    cache = built.empty_cache()
    ends = [0, *accumulate(pieces)]
    ends += range(ends[-1] + 1, sequence.shape[1] + 1)
    return torch.cat([built(sequence[:, a:b], pos[:, :b], cache) for a, b in pairwise(ends)], 1)


def cache_gap(built: Any, sequence: Tensor, pos: Tensor, *pieces: int) -> float:
    """The largest difference between decoding in these pieces and the whole pass.

    Raises:
        ContractError: it is more than rounding.
    """
    with torch.inference_mode():
        steps, whole = in_pieces(built, sequence, pos, *pieces), built(sequence, pos)
    return agree(
        steps,
        whole,
        1e-10,
        "decoding with a key cache (read pos_q and pos_k as passed) changes states",
    )


def change_after(sequence: Tensor, t: int, words: int = VOCAB) -> Tensor:
    """A copy of the tokens with other tokens after the place t."""
    changed = sequence.clone()
    changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % words
    return changed


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
        ContractError: one is beyond ``tolerance (1 + |other|)``.
    """
    gap = largest(one - other)
    close = torch.allclose(one, other, rtol=tolerance, atol=tolerance)
    require(close, f"{otherwise} by {gap:.1e}")
    return gap


def restored(built: nn.Module, other: nn.Module, *inputs: Tensor) -> str:
    """A model with another's ``state_dict`` computes the same."""
    other.load_state_dict(built.state_dict())
    gap = largest(other(*inputs) - built(*inputs))
    what = "what is drawn when a model is built must be a parameter or a persistent buffer"
    require(gap == 0, f"a model with this one's state_dict differs by {gap:.1e}: {what}")
    return f"{len(built.state_dict())} tensors saved and loaded, states equal bit for bit"


def fast_equals_plain(
    fast: nn.Module, plain: nn.Module, sequence: Tensor, places: list[Tensor], loose: float = 1
) -> str:
    """Kernels change neither values nor gradients, at any positions.

    Args:
        loose: by how much the tolerances are multiplied.
    """
    worst = 0.0
    for pos, training in product(places, (True, False)):
        outs = [built.train(training)(sequence, pos) for built in (fast, plain)]
        gap = agree(outs[0], outs[1], 1e-12 * loose, "the kernels change states")
        worst = max(worst, gap)
        grads = [gradients(built, out) for out, built in zip(outs, (fast, plain), strict=True)]
        for (name, _), one, other in zip(fast.named_parameters(), *grads, strict=True):
            agree(one, other, 1e-10 * loose, f"the kernels change the gradient of {name}")
    return f"states with the kernels differ by {worst:.0e}, gradients within {1e-10 * loose:.0e}"


def other_values(section: Section, key: str) -> list[Any]:
    """Other values of a key: the other choices, or other numbers to try."""
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
        # Rounding of large logits would be taken for a fault.
        return [{"width": 5, "heads": 2, "attention_factor": 2}.get(key, MAX_LEN + 5)]
    if key == "base" and value >= 1000:
        # A base of frequencies: few features have several within the trained length (FoPE).
        return [value / 1000, value / 2000]
    if isinstance(value, (int, float)):
        return [other for other in (2 * value + 1, value / 2) if other != value]
    return []


def changing_values(
    section: Section,
    key: str,
    same: Callable[[Section, Section], bool | None],
    values: Callable[[Section, str], list[Any]] = other_values,
) -> list[str]:
    """The other values of a key that are accepted.

    Args:
        same: whether two sections compute the same; None: one of them is refused.
        values: the other values of a key to try.

    Raises:
        ContractError: a value changes nothing, neither alone nor beside another value of one other
            key.
    """
    changing = []
    for value in values(section, key):
        outcomes = []
        for start in neighbours(section, key, values):
            outcomes.append(same(start, {**start, key: value}))
            if outcomes[-1] is False:
                break
        if set(outcomes) != {None}:
            idle = f"{key}={as_word(value)} computes the same as {key}={as_word(section[key])}"
            require(False in outcomes, idle)
            changing.append(as_word(value))
    return changing


def neighbours(
    section: Section, key: str, values: Callable[[Section, str], list[Any]]
) -> Iterator[Section]:
    """The section as it is, then with one key other than this one changed."""
    yield section
    for other in sorted(section.keys() - {key, "_target_"}):
        for value in values(section, other):
            yield {**section, other: value}


def parts(*written: str | dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a combined encoding as the command line would fill them in."""
    filled: list[dict[str, Any]] = fill_parts({"parts": list(written)})["parts"]
    return filled


def accepted(section: Section, sizes: Dims) -> bool:
    try:
        build_encodings(section, sizes)
    except UsageError:
        return False
    return True


def as_word(value: Any) -> str:
    """A value as part of a name: ``true``, ``half``, ``learned+t5``."""
    if isinstance(value, list):
        return "+".join(str(part["pe"]) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def try_keys(section: Section, change: Callable[[str], list[str]]) -> str:
    """A sentence with the values of each key that were tried.

    Args:
        change: returns the other values of a key that change something.

    Raises:
        NotClaimedError: no key has another value to try.
    """
    values = {key: change(key) for key in section if key != "_target_"}
    done = [f"{key}={'|'.join(tried)}" for key, tried in values.items() if tried]
    untried = ", ".join(key for key, tried in values.items() if not tried)
    if not done:
        raise NotClaimedError(
            f"no other value to try of {untried}" if untried else "it has no keys"
        )
    left = f"; no other value to try of {untried}" if untried else ""
    return f"tried {', '.join(done)}{left}"


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
