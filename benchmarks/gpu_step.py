"""On a GPU: the whole training step of every encoding, as each key of ``train`` takes it.

A step is a run's: forward, cross-entropy at the places that flip-flop scores, backward, clipping
and fused AdamW, on one batch that stays on the CPU between steps, as a run's batches come.
"""

import time
from pathlib import Path
from typing import Any

from benchmarks.found import Found, table
from benchmarks.gauges import Step
from benchmarks.gpu_clock import Clock
from benchmarks.ours import sized
from pe_lab.store.run_folder import RunFolder
from pe_lab.training.plan import plan
from pe_lab.training.trainer import Trainer

ENCODINGS = ("none", "rope", "alibi", "t5", "relative", "transformer_xl", "cope")
SIDES = {
    "eager": ("train.fast=false",),
    "fast": (),
}
SIZES = {"small": (128, 32), "paper": (512, 16), "tiny": (16, 2)}
"""Length and batch."""


def made(encoding: str, size: str, precision: str, side: str, clock: Clock) -> Step:
    """A step of a new model."""
    length, batch = SIZES[size]
    words = [f"task.length={length}", f"train.batch_size={batch}", f"train.precision={precision}"]
    device = f"device={clock.device.type}"
    config = sized(encoding, size, 0.0, "task=flipflop", device, *words, *SIDES[side])
    trainer = Trainer(plan(config), clock.device, RunFolder(Path()), {}, lambda: None)
    parts = trainer.microbatches()
    return lambda: trainer.train_on(parts)


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
    """Each side by itself, one after another."""
    row: dict[str, Any] = {"ms": {}, "peak_mb": {}, "failed": {}}
    for side in SIDES:
        try:
            step = made(encoding, size, precision, side, clock)
            row["ms"][side] = clock.medians({side: step})[side]
            row["peak_mb"][side] = clock.peak_mb(step)
        except Exception as error:  # what cannot be done is a finding, not an end
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
