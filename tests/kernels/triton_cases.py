"""CoPE by its Triton kernels and by its formula, case by case.

``python triton_cases.py FILE`` runs every case through Triton's interpreter, which has to be chosen
before triton is imported, so in a new process; it writes values and gradients to FILE.

What the interpreter cannot show: races among programs, bfloat16 (it multiplies their bits), tf32
(its products are plain float32), layouts, registers, and what the compiler refuses
(test_cope.py compiles).
"""

import os
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.pe.cope_positions import CountAndPick

KEY = 0x7ED5_A3B1_C4D7_9E2F


@dataclass(frozen=True)
class Case:
    """Sizes as in pe_lab/pe/base.py, N rows of the table.

    Args:
        gates: what a gate multiplies: ``keys`` (q, k), ``values`` (q, v), ``separate``.
        open: every separate gate is nearly 1, so that positions reach the number of keys.
        apart: q, k and v apart in memory; else side by side, as a linear layer leaves them.
        scores_bytes: of ``SCORES_BYTES``; None: as it is.
    """

    b: int
    h: int
    t: int
    s: int
    d: int
    n: int
    scale: float = 1.0
    p: float = 0.1
    gates: str = "keys"
    open: bool = False
    apart: bool = True
    dtype: torch.dtype = torch.float32
    scores_bytes: int | None = None


CASES = {
    "a table that is soon used up": Case(1, 2, 37, 37, 16, 5),
    "a table longer than the sequence": Case(1, 2, 33, 33, 16, 80, p=0.0),
    "the last queries, an odd width": Case(1, 2, 19, 50, 24, 30, scale=0.25),
    "one query": Case(2, 1, 1, 40, 16, 41),
    "one position": Case(1, 1, 20, 20, 16, 1),
    "separate gates": Case(1, 2, 35, 35, 16, 36, gates="separate"),
    "open gates": Case(1, 1, 20, 20, 16, 40, gates="separate", open=True),
    "values as gates, the table used up": Case(1, 1, 18, 67, 16, 7, gates="values"),
    "side by side": Case(2, 2, 17, 17, 16, 18, apart=False),
    "a wide head": Case(1, 1, 16, 16, 128, 17),
    "head after head": Case(3, 1, 17, 17, 16, 18, scores_bytes=2 * 17 * 24 * 16),
    "halves": Case(1, 1, 40, 40, 32, 20, dtype=torch.float16),
}
WEIGHTS = Case(2, 2, 20, 32, 32, 33, p=0.4)


def inputs(case: Case, device: str = "cpu") -> dict[str, Tensor]:
    """Inputs in the case's precision, and the gradient of the result (``back``)."""
    torch.manual_seed(0)
    c = case
    tokens, queries = (c.b, c.h, c.s, c.d), (c.b, c.h, c.t, c.d)
    if c.apart:
        q, k, v = (torch.randn(size) for size in (queries, tokens, tokens))
    else:
        together = torch.randn(c.b, c.s, 3 * c.h * c.d)
        q, k, v = (x.unflatten(-1, (c.h, -1)).transpose(1, 2) for x in together.chunk(3, -1))
    gate_q, gate_k = torch.randn(queries), torch.randn(tokens)
    if c.open:
        gate_q, gate_k = 0.95 + 0.1 * gate_q, 0.95 + 0.1 * gate_k
    x = {"q": q, "k": k, "v": v, "gate_q": gate_q, "gate_k": gate_k}
    x |= {"back": torch.randn(queries)}
    made = {name: part.to(device, c.dtype) for name, part in x.items()}
    return made | {"table": 0.5 * torch.randn(c.n, c.d).to(device)}


def by_formula(
    q: Tensor, k: Tensor, v: Tensor, gate_q: Tensor, gate_k: Tensor, table: Tensor,
    scale: float, drop: Drop | None,
) -> Tensor:  # fmt: skip
    """As pe_lab/pe/cope.py and attention.py do it."""
    t, s, root = q.shape[2], k.shape[2], q.shape[3] ** 0.5
    mask = torch.ones(s, s, dtype=torch.bool, device=q.device).tril()[s - t :]
    scores = gate_q @ table.T
    term = CountAndPick.apply(gate_q @ gate_k.mT / root, scores, mask)
    weights = (q @ k.mT / root + scale * term).masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights if drop is None else drop(weights, attention_rows(weights))) @ v


def dropped(case: Case) -> Drop | None:
    """What the case drops."""
    return Drop(case.p, KEY) if case.p else None


def results(case: Case, inputs: dict[str, Tensor], run: object = by_formula) -> dict[str, Tensor]:
    """The result and every gradient, by name."""
    x = {name: part.detach().requires_grad_() for name, part in inputs.items() if name != "back"}
    gates = {"keys": ("q", "k"), "values": ("q", "v"), "separate": ("gate_q", "gate_k")}[case.gates]
    drop = dropped(case)
    operands = [x[name] for name in ("q", "k", "v", *gates, "table")]
    out = run(*operands, case.scale, drop)  # type: ignore[operator]
    out.backward(inputs["back"].to(out.dtype))
    grads = {name: part.grad for name, part in x.items() if part.grad is not None}
    return {"out": out.detach(), **grads}


def expected(case: Case, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The formula in float64."""
    return results(case, {name: part.double() for name, part in inputs.items()})


def unit_values(case: Case) -> dict[str, Tensor]:
    """Inputs whose result is the dropped weights: the values are unit vectors."""
    return inputs(case) | {"v": torch.eye(case.s).expand(case.b, case.h, -1, -1).contiguous()}


def interpreted() -> dict[str, dict[str, Tensor]]:
    """Every case, and what is dropped."""
    os.environ["TRITON_INTERPRET"] = "1"
    from pe_lab.kernels.triton import cope

    cope.supports = lambda *_: True
    usual, found = cope.SCORES_BYTES, {}
    for name, case in CASES.items():
        cope.SCORES_BYTES = case.scores_bytes or usual
        found[name] = results(case, inputs(case), cope.cope)
    found["weights"] = results(WEIGHTS, unit_values(WEIGHTS), cope.cope)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.save(interpreted(), sys.argv[1])
