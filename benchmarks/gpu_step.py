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
from pe_lab.training.captured import Captured, FixedStep
from pe_lab.training.compiled_loss import CompiledLoss
from pe_lab.training.padded_steps import PaddedSteps
from pe_lab.training.plan import plan
from pe_lab.training.trainer import Trainer

ENCODINGS = ("none", "rope", "alibi", "t5", "relative", "transformer_xl", "cope")
SIDES = {
    "eager": ("train.fast=false",),
    "fast": (),
    "fast + compile": ("train.compile=true",),
    "fast + graphs": ("train.cuda_graphs=true",),
}
SIZES = {"small": (128, 32), "paper": (512, 16), "tiny": (16, 2)}
"""Length and batch."""


class _Unrecorded(Captured):
    """A dry run takes the step that would be recorded."""

    def capture(self, fixed: FixedStep) -> Step:
        return fixed.run


def made(encoding: str, size: str, precision: str, side: str, clock: Clock) -> Step:
    """A step of a new model."""
    (length, batch), dry = SIZES[size], clock.device.type == "cpu"
    words = [f"task.length={length}", f"train.batch_size={batch}", f"train.precision={precision}"]
    recorded = side.endswith("graphs")
    if not (dry and recorded):
        words += SIDES[side]
    config = sized(encoding, size, 0.0, "task=flipflop", f"device={clock.device.type}", *words)
    planned = plan(config)
    trainer = Trainer(planned, clock.device, RunFolder(Path()), {}, lambda: None)
    if dry and trainer.padded is not None and isinstance(trainer.padded.loss, CompiledLoss):
        # Inductor takes a minute to build what is measured in a millisecond.
        trainer.padded.loss.backend = "aot_eager"
    if dry and recorded:
        padded = PaddedSteps(planned, trainer.model, trainer.optimizer, trainer.data)
        padded.captured = _Unrecorded(padded.loss, trainer.optimizer, config.train.clip)
        trainer.padded = padded
    parts = trainer.parts()
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
    """Each side by itself, one after another: compiled code is dropped before the next."""
    row: dict[str, Any] = {"ms": {}, "peak_mb": {}, "failed": {}}
    for side in SIDES:
        try:
            step = made(encoding, size, precision, side, clock)
            row["ms"][side] = clock.medians({side: step})[side]
            # A step that is replayed takes no memory: what it needs is set aside beforehand.
            if not side.endswith("graphs"):
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
