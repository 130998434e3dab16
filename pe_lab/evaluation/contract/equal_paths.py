"""The contract of an encoding's other paths: a key cache and the kernels equal the plain one."""

from typing import Any

import torch
from torch import Tensor

from pe_lab.evaluation.contract import tiny
from pe_lab.evaluation.contract.outcome import ContractError, NotClaimedError, hold
from pe_lab.evaluation.contract.tiny import (
    TRAIN_LEN,
    Section,
    differ,
    in_pieces,
    largest,
    model,
    reach,
    scattered,
    sequential,
    tokens,
)
from pe_lab.models.transformer import Transformer
from pe_lab.training.kernels import has_kernels


def cached(section: Section, **sizes: Any) -> str:
    """Decoding with a key cache equals the whole pass, beyond the trained length.

    Tokens come one at a time and several at once, at positions 0, 1, .. and at scattered ones.
    """
    built = model(section, **sizes).eval()
    limit = reach(built.encodings)
    n = min(2 * TRAIN_LEN, limit)
    worst = 0.0
    for encoding in built.encodings:
        if encoding.whole_sequence is not None:
            check_refused(built)
            raise NotClaimedError(f"{encoding.whole_sequence} reads the whole sequence's length")
    pieces = (TRAIN_LEN - 1, 1, 1, 1, max(1, n - TRAIN_LEN - 4)) if n > TRAIN_LEN + 4 else (1, 1)
    for what, pos in (("0, 1, ..", sequential(n)), ("with gaps", scattered(3, n, limit))):
        worst = max(worst, cache_gap(built, tokens(3, n), pos, *pieces, what=f"positions {what}"))
    return f"{n} tokens decoded one by one and in pieces differ by {worst:.0e}"


def cache_gap(built: Any, seen: Tensor, pos: Tensor, *pieces: int, what: str = "") -> float:
    """The largest difference between decoding in these pieces and the whole pass.

    Raises:
        ContractError: it is more than rounding.
    """
    with torch.inference_mode():
        steps, whole = in_pieces(built, seen, pos, *pieces), built(seen, pos)
    if (gap := differ(steps, whole, rtol=1e-10, atol=1e-10)) is not None:
        wrong = ~torch.isclose(steps, whole, rtol=1e-10, atol=1e-10)
        at = int(wrong.any(-1).any(0).nonzero()[0])
        raise ContractError(
            f"decoding with a key cache differs by {gap:.1e} from token {at} on, {what}: read "
            "pos_q and pos_k as passed (queries are the last of the keys), count no rows"
        )
    return largest(steps - whole)


def any_order(section: Section, **sizes: Any) -> str:
    """With ``any_order``, positions may fall and repeat: states are finite, do not depend on later
    positions, and are the same with a key cache."""
    built = model(section, **sizes).eval()
    reading = [encoding for encoding in built.encodings if encoding.reads_positions]
    if not reading or not all(encoding.any_order for encoding in reading):
        raise NotClaimedError("any_order is False: positions of later tokens are not smaller")
    seen, limit = tokens(3, TRAIN_LEN), reach(built.encodings)
    drawn = torch.randint(0, limit, (3, TRAIN_LEN), generator=torch.Generator().manual_seed(5))
    hidden = built(seen, drawn)
    hold(
        hidden.isfinite().all(), "any_order is True, but positions that fall make states not finite"
    )
    # The positions of later tokens are other ones, too.
    later = drawn.clone()
    later[:, TRAIN_LEN // 2 :] = limit - 1 - later[:, TRAIN_LEN // 2 :]
    gap = largest((built(seen, later) - hidden)[:, : TRAIN_LEN // 2])
    hold(gap <= 1e-12, f"positions of later tokens change earlier states by {gap:.1e}")
    worst = cache_gap(built, seen, drawn, 3, what="positions that fall and repeat")
    return f"positions that fall and repeat: decoded one by one, states differ by {worst:.0e}"


def check_refused(built: Transformer) -> None:
    """ContractError if a key cache is not refused."""
    try:
        built.empty_cache()
    except ValueError:
        return
    raise ContractError("whole_sequence is set, but a key cache is not refused")


def fast_equals_plain(section: Section, **sizes: Any) -> str:
    """With the kernels as without, in value and gradient, with dropout and at any positions."""
    if not has_kernels():
        raise NotClaimedError("pe_lab/kernels is missing")
    trunk = {"dropout": 0.2}
    fast, plain = (model(section, trunk=trunk, fast=f, **sizes) for f in (True, False))
    places = [sequential(TRAIN_LEN), scattered(2, TRAIN_LEN, reach(fast.encodings))]
    return tiny.fast_equals_plain(fast, plain, tokens(2, TRAIN_LEN), places)
