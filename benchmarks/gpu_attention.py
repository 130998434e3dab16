"""On a GPU: CoPE's attention in Triton, forward + backward.

Four heads of width 64 (the paper's size), about 8 192 tokens, q, k and v side by side in memory as
the model has them. Errors are of the result, against the formula in float64.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.found import Found, table
from benchmarks.gauges import Step
from benchmarks.gpu_clock import Clock
from pe_lab.common.dropout import Drop, attention_rows
from pe_lab.kernels.triton.cope import cope
from pe_lab.pe.cope import CountAndPick

HEADS, WIDTH, TOKENS = 4, 64, 8192
LENGTHS = (128, 256, 512, 1024, 2048)
PRECISIONS = ("float32", "float32 by tf32", "bfloat16")
LARGEST = 2**30
"""Numbers in (B, H, L, L) with which the formula is still run."""

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Drop | None], Tensor | None]


def weighted(logits: Tensor, v: Tensor, drop: Drop | None) -> Tensor:
    """Causal softmax, dropout, values."""
    mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=v.device).tril()
    weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    weights = weights if drop is None else drop(weights, attention_rows(weights))
    return weights.to(v.dtype) @ v


def cope_by_formula(q: Tensor, k: Tensor, v: Tensor, e: Tensor, drop: Drop | None) -> Tensor:
    """As pe/cope.py does it."""
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    content = q @ k.mT / q.shape[3] ** 0.5
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ e.to(wide).T
    term = CountAndPick.apply(content.to(wide), scores, mask)  # type: ignore[no-untyped-call]
    return weighted(content + term, v, drop)


def plain(q: Tensor, k: Tensor, v: Tensor, unused: Tensor, drop: Drop | None) -> Tensor:
    """Attention without positions: the fastest that PyTorch has."""
    return F.scaled_dot_product_attention(q, k, v, None, drop.p if drop else 0.0, is_causal=True)


SIDES: dict[str, Attend] = {
    "ours": lambda q, k, v, e, drop: cope(q, k, v, q, k, e, 1.0, drop),
    "formula": cope_by_formula,
    "plain": plain,
}


@contextmanager
def allowing(precision: str) -> Iterator[torch.dtype]:
    """The type of the inputs; products of float32 by tf32 where that is asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision.endswith("tf32") else "highest")
    yield torch.bfloat16 if precision == "bfloat16" else torch.float32
    torch.set_float32_matmul_precision(before)


def measure(clock: Clock, dry: bool) -> Found:
    """Rows of every length, precision and share of dropout."""
    found = Found()
    for length in (16,) if dry else LENGTHS:
        for precision in PRECISIONS:
            for p in (0.0, 0.1):
                with allowing(precision) as dtype:
                    found.rows.append(_row(clock, length, precision, dtype, p, dry))
    found.tables = [_table(found.rows)]
    return found


def _row(
    clock: Clock, length: int, precision: str, dtype: torch.dtype, p: float, dry: bool
) -> dict[str, Any]:
    batch = 1 if dry else max(1, TOKENS // length)
    torch.manual_seed(0)
    qkv = torch.randn(batch, length, 3 * HEADS * WIDTH).to(clock.device, dtype).requires_grad_()
    back = torch.randn(batch, HEADS, length, WIDTH).to(clock.device, dtype)
    extra = torch.randn(length + 1, WIDTH).to(clock.device).requires_grad_()
    drop = Drop(p, 12345) if p else None

    def run(attend: Attend, x: Tensor, e: Tensor) -> Tensor | None:
        q, k, v = x.view(batch, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        return attend(q, k, v, e, drop)

    def step(attend: Attend) -> Step:
        def both() -> None:
            out = run(attend, qkv, extra)
            assert out is not None
            torch.autograd.grad(out, (qkv, extra), back.to(out.dtype), allow_unused=True)

        return both

    row: dict[str, Any] = {"length": length, "batch": batch, "precision": precision, "dropout": p}
    # No kernel of ours runs without a GPU.
    sides = SIDES | ({"ours": SIDES["formula"]} if dry else {})
    fits = batch * HEADS * length**2 <= LARGEST
    if not fits:
        del sides["formula"]
    served = {name: of for name, of in sides.items() if run(of, qkv, extra) is not None}
    if "ours" in served and fits:
        wanted = run(sides["formula"], qkv.detach().double(), extra.detach().double())
        given = run(sides["ours"], qkv, extra)
        assert wanted is not None
        assert given is not None
        row["error"] = float(((given - wanted).abs().max() / wanted.abs().max()).detach())
    steps = {name: step(attend) for name, attend in served.items()}
    row["ms"] = clock.medians(steps)
    row["peak_mb"] = {name: clock.peak_mb(one) for name, one in steps.items()}
    return row


def _table(rows: list[dict[str, Any]]) -> Any:
    title = "CoPE's attention forward + backward on the GPU, ms; -: does not serve or fit"
    names = list(SIDES)
    cells = []
    for row in rows:
        first = [str(row["length"]), str(row["batch"]), row["precision"], f"{row['dropout']:g}"]
        ms = [f"{row['ms'][name]:.3f}" if name in row["ms"] else "-" for name in names]
        mb = [_megabytes(row["peak_mb"].get(name)) for name in names]
        cells.append([*first, *ms, *mb, f"{row['error']:.1e}" if "error" in row else "-"])
    shown = [*names, *(f"{name} MB" for name in names), "error"]
    return table(title, ["length", "batch", "precision", "dropout", *shown], cells)


def _megabytes(mb: float | None) -> str:
    return "-" if mb is None else f"{mb:.0f}"
