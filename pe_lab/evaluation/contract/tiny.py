"""The tiny transformer and its inputs in which an encoding is checked.

Numbers are of torch's default type: ``exact`` makes that float64, so that agreement is a matter of
formulas, not of rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.evaluation.contract.outcome import hold
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.training.kernels import accelerate
from pe_lab.training.plan import build_encodings

Section = dict[str, Any]
"""The keys of an encoding, a task or a model, with its ``_target_``."""
TRAIN_LEN, MAX_LEN, VOCAB = 12, 48, 11


@contextmanager
def exact() -> Iterator[None]:
    """float64 on one thread, and the random state of the process left as it is.

    Threads would wait for one another: the tensors are tiny.
    """
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
    """The tiny model; its trunk depends on the seed alone.

    What starts at zero would hide its encoding: every parameter of an encoding is moved.

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
        accelerate(built)
    # Larger queries and keys: at their initial size attention is nearly uniform.
    for block in built.blocks:
        block.attention.qkv.weight.data.mul_(3)  # type: ignore[union-attr, operator]
    return built


def move_parameters(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)


def reach(encodings: list[PositionalEncoding]) -> int:
    """Positions to test: MAX_LEN, or as many as the encodings have."""
    return min([MAX_LEN, *(e.max_len for e in encodings if e.max_len is not None)])


def tokens(n: int, length: int, seed: int = 7) -> Tensor:
    return torch.randint(0, VOCAB, (n, length), generator=torch.Generator().manual_seed(seed))


def sequential(length: int, offset: int = 0) -> Tensor:
    return torch.arange(offset, offset + length)[None]


def scattered(n: int, length: int, limit: int, seed: int = 3) -> Tensor:
    """A sorted random subset of 0 .. limit-1 for each of n sequences."""
    keys = torch.rand(n, limit, generator=torch.Generator().manual_seed(seed))
    return keys.argsort(-1)[:, :length].sort(-1).values


def in_pieces(built: Any, seen: Tensor, pos: Tensor, *pieces: int) -> Tensor:
    """Hidden states with a cache: ``pieces`` tokens at a time, then the others one by one."""
    cache = built.empty_cache()
    ends = [0, *accumulate(pieces)]
    ends += range(ends[-1] + 1, seen.shape[1] + 1)
    return torch.cat([built(seen[:, a:b], pos[:, :b], cache) for a, b in pairwise(ends)], 1)


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


def agree(one: Tensor, other: Tensor, rtol: float, atol: float, otherwise: str) -> float:
    """The largest difference of two tensors.

    Raises:
        ContractError: one is beyond ``atol + rtol |other|``; with ``otherwise`` and the largest.
    """
    gap = differ(one, other, rtol, atol)
    hold(gap is None, f"{otherwise} by {gap or 0:.1e}")
    return largest(one - other)


def differ(one: Tensor, other: Tensor, rtol: float, atol: float) -> float | None:
    """The largest difference of two tensors; None if all are within ``atol + rtol |other|``."""
    if torch.allclose(one, other, rtol=rtol, atol=atol):
        return None
    return largest(one - other)


def change_after(seen: Tensor, t: int, words: int = VOCAB) -> Tensor:
    """The same tokens up to the place t, other ones after it."""
    changed = seen.clone()
    changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % words
    return changed


def restored(built: nn.Module, other: nn.Module, *inputs: Tensor) -> str:
    """A model with another's ``state_dict`` computes the same."""
    other.load_state_dict(built.state_dict())
    gap = largest(other(*inputs) - built(*inputs))
    hold(
        gap == 0,
        f"a model with this one's state_dict differs by {gap:.1e}: what is drawn when it is built "
        "must be a parameter or a persistent buffer",
    )
    return f"{len(built.state_dict())} tensors saved and loaded, states equal bit for bit"


def fast_equals_plain(
    fast: nn.Module, plain: nn.Module, seen: Tensor, places: list[Tensor], loose: float = 1
) -> str:
    """With the kernels as without, in value and gradient, with dropout and at any positions.

    Args:
        loose: by how much the tolerances are multiplied.
    """
    worst = 0.0
    for pos, dropping in product(places, (True, False)):
        outs = [built.train(dropping)(seen, pos, key=3) for built in (fast, plain)]
        where = "in training" if dropping else "in evaluation"
        tolerance = 1e-12 * loose
        what = f"the kernels change states {where}"
        gap = agree(outs[0], outs[1], tolerance, tolerance, what)
        worst = max(worst, gap)
        grads = [gradients(built, out) for out, built in zip(outs, (fast, plain), strict=True)]
        for (name, _), one, other in zip(fast.named_parameters(), *grads, strict=True):
            agree(
                one, other, 1e-10 * loose, tolerance, f"the kernels change the gradient of {name}"
            )
    return f"states with the kernels differ by {worst:.0e}, gradients within {1e-10 * loose:.0e}"
