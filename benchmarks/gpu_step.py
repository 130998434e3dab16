"""On a GPU: the whole training step of every encoding, eager, fast, and as torch.compile has it.

A step is forward, cross-entropy at the places that flip-flop scores, backward, clipping and fused
AdamW, on one batch that stays on the CPU between steps, as a run's batches come. ``graphs`` is
torch.compile with CUDA graphs; it and ``compiled`` are of the eager model.
"""

import time
from typing import Any

import torch

from benchmarks.found import Found, table
from benchmarks.gauges import Step
from benchmarks.gpu_clock import Clock
from benchmarks.ours import dims, flipflop, sized, transformer
from pe_lab.build import build_encodings
from pe_lab.models.transformer import Transformer
from pe_lab.optimizer import Adam
from pe_lab.train import summed_loss

ENCODINGS = ("none", "rope", "alibi", "t5", "relative", "transformer_xl", "cope")
SIDES = ("eager", "fast", "compiled", "graphs")
SIZES = {"small": (128, 32), "paper": (512, 16), "tiny": (16, 2)}
"""Length and batch."""


def made(encoding: str, size: str, precision: str, side: str, clock: Clock) -> Step:
    """A step of a new model."""
    fast = "true" if side == "fast" else "false"
    also = (f"train.precision={precision}", f"train.fast={fast}")
    config = sized(encoding, size, 0.0, *also)
    length, batch = SIZES[size]
    data, vocab_size = flipflop(length, batch, "reads")
    torch.manual_seed(0)
    cfg = transformer(config)
    encodings = build_encodings(config.pe, dims(cfg, vocab_size, length))
    model = Transformer(cfg, vocab_size, encodings, config.train.fast).to(clock.device)
    if side in ("compiled", "graphs"):
        torch.compiler.reset()
        on_gpu = clock.device.type == "cuda"
        mode = "reduce-overhead" if side == "graphs" and on_gpu else None
        model.compile(mode=mode, backend="inductor" if on_gpu else "eager")
    model.train()
    optimizer = Adam(config.train, model.parameters())
    pos, counted = torch.arange(length, device=clock.device)[None], data.scored
    half = precision == "bfloat16"

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.autocast(clock.device.type, torch.bfloat16, enabled=half):
            loss = summed_loss(model, data, counted, pos) / int(counted.sum())
        torch.autograd.backward(loss)
        optimizer.clip(config.train.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(sizes: list[str], clock: Clock, encodings: list[str], seconds: float) -> Found:
    """Rows of every size, encoding and precision; none is begun after so many seconds."""
    found, began = Found(), time.monotonic()
    for size in sizes:
        for precision in ("bfloat16",) if size == "tiny" else ("bfloat16", "float32"):
            for encoding in encodings:
                row: dict[str, Any] = {"size": size, "encoding": encoding, "precision": precision}
                if time.monotonic() - began < seconds:
                    row |= _measured(encoding, size, precision, clock)
                found.rows.append(row)
    found.tables = [_table(found.rows)]
    return found


def _measured(encoding: str, size: str, precision: str, clock: Clock) -> dict[str, Any]:
    """Each side by itself, one after another: compiled code is dropped before the next."""
    row: dict[str, Any] = {"ms": {}, "peak_mb": {}, "failed": {}}
    for side in SIDES:
        # Graphs are for models whose kernels are shorter than their launches.
        if side == "graphs" and size == "paper":
            continue
        try:
            step = made(encoding, size, precision, side, clock)
            row["ms"][side] = clock.medians({side: step})[side]
            row["peak_mb"][side] = clock.peak_mb(step)
        except Exception as error:  # what a compiler cannot do is a finding, not an end
            row["failed"][side] = f"{type(error).__name__}: {error}".splitlines()[0]
    return row


def _table(rows: list[dict[str, Any]]) -> Any:
    title = "a training step on the GPU, ms; -: not tried, failed: see the file"
    cells = []
    for row in rows:
        ms = [
            "failed !"
            if side in row.get("failed", {})
            else f"{row['ms'][side]:.2f}"
            if side in row.get("ms", {})
            else "-"
            for side in SIDES
        ]
        gain = "-"
        if {"eager", "fast"} <= row.get("ms", {}).keys():
            gain = f"{row['ms']['eager'] / row['ms']['fast']:.2f}"
        cells.append([row["size"], row["encoding"], row["precision"], *ms, gain])
    return table(title, ["size", "encoding", "precision", *SIDES, "eager / fast"], cells)
