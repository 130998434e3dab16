"""That a road equals the eager formulas, shown on small tensors before it is used."""

import functools
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pe_lab.common.dropout import Drop, attention_rows
from pe_lab.kernels import build
from pe_lab.kernels.turns import Turns, in_pytorch

logger = logging.getLogger("pe_lab")

Attend = Callable[..., Tensor | None]

# Sequences, heads, queries, keys, share dropped: more than one block of rows; and the last rows
# alone, which is how the last layer may have them.
SIZES = ((1, 2, 70, 70, 0.0), (2, 2, 37, 70, 0.25))
WIDTH, POSITIONS, POSITION_SCALE = 16, 9, 0.7
LIMIT = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


def difference(kind: str, attend: Attend, device: torch.device, dtype: torch.dtype) -> str:
    """Where a road is further from the eager formulas in float64 than rounding brings it, in
    value or in a gradient, in a few words; empty: nowhere.

    Args:
        attend: what ``kind`` names, a key of EAGER, as roads.py describes it. Where it
            returns None it does not serve, and nothing is compared.
    """
    with torch.inference_mode(False), torch.enable_grad():
        for drawn, call in _cases(kind):
            leaves = {name: x.to(_type(name, dtype)) for name, x in drawn.items()}
            found = _tried(attend, {name: x.to(device) for name, x in leaves.items()}, call)
            if found is None:
                continue
            expected = _tried(EAGER[kind], {name: x.double() for name, x in leaves.items()}, call)
            assert expected is not None
            for name, x, y in zip(("value", *drawn), found, expected, strict=True):
                error = float((x.cpu().double() - y).abs().max() / y.abs().max().clamp(min=1))
                if not error <= LIMIT[dtype]:
                    what = name if name == "value" else f"gradient of {name}"
                    return f"its {what} is off by {error:.1e} of the largest"
    return ""


@functools.cache
def small_kernel(source: str, dtype: torch.dtype, same: Callable[[torch.dtype], bool]) -> bool:
    """Whether a compiled kernel for something else than attention is there and makes what plain
    PyTorch makes; a warning if it does not.

    Args:
        same: tries it on small tensors of this type.
    """
    # It has told why it is not there.
    if build.library(source) is None:
        return False
    try:
        with torch.inference_mode(False), torch.no_grad():
            proved = same(dtype)
    except Exception as error:  # whatever it is, slower code can serve
        logger.debug("the compiled kernel %s failed", source, exc_info=error)
        proved = False
    if not proved:
        logger.warning("the kernel %s does not serve on this machine: slower code does", source)
    return proved


Leaves = dict[str, Tensor]
Call = Callable[[Attend, Leaves], Tensor | None]


def _type(name: str, dtype: torch.dtype) -> torch.dtype:
    """In half precision come queries, keys and values alone."""
    return torch.promote_types(dtype, torch.float32) if name in ("table", "bias") else dtype


def _tried(attend: Attend, leaves: Leaves, call: Call) -> list[Tensor] | None:
    """The value and the gradients of all leaves."""
    given = {name: x.requires_grad_() for name, x in leaves.items()}
    out = call(attend, given)
    if out is None:
        return None
    direction = torch.linspace(-9, 9, out.numel(), dtype=torch.float64).sin().view(out.shape)
    # Of a number: with a direction given, torch imports sympy, which takes twenty times as long as
    # the rest of this file.
    total = (out * direction.to(out)).sum()
    return [out.detach(), *torch.autograd.grad(total, list(given.values()))]


def _cases(kind: str) -> Iterator[tuple[Leaves, Call]]:
    rng = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    for b, h, t, s, p in SIZES:
        drop = Drop(p, 0x0123_4567_89AB_CDEF) if p else None
        qkv, gates = drawn(b, s, 3 * h * WIDTH), drawn(b, s, 2 * h * WIDTH)

        def parts(x: Tensor, n: int, h: int = h) -> list[Tensor]:
            """As ``Attention`` makes them: views, of which some heads lie side by side."""
            return [y.view(*y.shape[:2], h, -1).transpose(1, 2) for y in x.chunk(n, -1)]

        def counted(attend: Attend, of: Leaves, t: int = t, drop: Any = drop) -> Tensor | None:
            q, k, v = parts(of["qkv"], 3)
            q = q[:, :, -t:]
            gate_q, gate_k = (q, k) if "gates" not in of else parts(of["gates"], 2)
            gate_q = gate_q if "gates" not in of else gate_q[:, :, -t:]
            return attend(q, k, v, gate_q, gate_k, of["table"], POSITION_SCALE, drop)

        def by_distance(attend: Attend, of: Leaves, t: int = t, drop: Any = drop) -> Tensor | None:
            q, k, v = parts(of["qkv"], 3)
            turns = () if kind == "distance" else (_turns(k, t),)
            return attend(q[:, :, -t:], k, v, of.get("bias"), *turns, drop)

        if kind == "cope":
            table = drawn(POSITIONS, WIDTH)
            yield {"qkv": qkv, "table": table}, counted
            yield {"qkv": qkv, "gates": gates, "table": table}, counted
        else:
            yield {"qkv": qkv}, by_distance
            yield {"qkv": qkv, "bias": drawn(h, s + 3)}, by_distance


def eager_cope(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    gate_q_BHTD: Tensor,
    gate_k_BHSD: Tensor,
    table_ND: Tensor,
    position_scale: float,
    drop: Drop | None,
) -> Tensor:
    """What ``roads.cope`` computes, as CoPE itself does it."""
    from pe_lab.pe.cope import CountAndPick

    width, (t, s) = q_BHTD.shape[-1], (q_BHTD.shape[2], k_BHSD.shape[2])
    gate_logits = gate_q_BHTD @ gate_k_BHSD.mT / math.sqrt(width)
    scores = gate_q_BHTD @ table_ND.T
    term = CountAndPick.apply(gate_logits, scores, _mask(t, s))[0]  # type: ignore[no-untyped-call]
    return _mixed(q_BHTD @ k_BHSD.mT / math.sqrt(width) + position_scale * term, v_BHSD, drop)


def eager_distance(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_HN: Tensor | None, drop: Drop | None
) -> Tensor:
    """What ``roads.distance`` computes."""
    t, s = q_BHTD.shape[2], k_BHSD.shape[2]
    logits = q_BHTD @ k_BHSD.mT / math.sqrt(q_BHTD.shape[-1])
    if bias_HN is not None:
        place = torch.arange(s)
        logits = logits + bias_HN[:, (place[s - t :, None] - place).clamp(min=0)]
    return _mixed(logits, v_BHSD, drop)


def eager_turned_distance(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor | None,
    turns: Turns,
    drop: Drop | None,
) -> Tensor:
    """What ``roads.turned_distance`` computes."""
    q, k = (
        in_pytorch(x, turn.to(x.dtype.to_complex()), turns.halves)
        for x, turn in ((q_BHTD, turns.q), (k_BHSD, turns.k))
    )
    return eager_distance(q, k, v_BHSD, bias_HN, drop)


EAGER: dict[str, Attend] = {
    "cope": eager_cope,
    "distance": eager_distance,
    "turned_distance": eager_turned_distance,
}


def _turns(k_BHSD: Tensor, t: int) -> Turns:
    """Some for these keys and the last t queries."""
    angle = torch.arange(k_BHSD.shape[2] * WIDTH // 2, device=k_BHSD.device).view(-1, WIDTH // 2)
    turn = torch.polar(1 + angle.double() / angle.max(), angle.double())[None, None]
    return Turns(turn[:, :, -t:], turn, halves=t == k_BHSD.shape[2])


def _mask(t: int, s: int) -> Tensor:
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)


def _mixed(logits: Tensor, v_BHSD: Tensor, drop: Drop | None) -> Tensor:
    weights = logits.masked_fill(~_mask(*logits.shape[2:]), -math.inf).softmax(-1)
    return (weights if drop is None else drop(weights, attention_rows(weights))) @ v_BHSD
