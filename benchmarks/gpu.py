"""``make bench-gpu``: training steps and CoPE's attention on one GPU, in a few minutes.

    python -m benchmarks.gpu [--dry]

For rope, cope and alibi at two sizes: milliseconds a step in float32 and bfloat16, with kernels and
with ``train.fast=false``, and the peak memory. Numbers and the device's name are printed and
written to runs/bench/gpu-<date>.json. ``--dry`` runs tiny sizes on the CPU, to see that it works.
"""

import argparse
import json
import statistics
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks import ours
from benchmarks.gauges import Step
from benchmarks.parts import table
from pe_lab.common.console import console
from pe_lab.experiment.machine import environment

ROOT = Path(__file__).resolve().parent.parent
ENCODINGS = ("rope", "cope", "alibi")
SHAPES = (("small", 64, 32), ("paper", 256, 64), ("paper", 1024, 16))
VARIANTS = {
    "float32": [],
    "bfloat16": ["train.precision=bfloat16"],
    "float32, fast=false": ["train.fast=false"],
    "bfloat16, fast=false": ["train.fast=false", "train.precision=bfloat16"],
}
ROUNDS, BLOCK_MS = 5, 50


def block_ms(step: Step, device: str, n: int) -> float:
    """Milliseconds a step over n steps in a row."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / n


def medians_ms(steps: dict[str, Step], device: str, rounds: int) -> dict[str, float]:
    """Median milliseconds a step; the sides alternate in blocks."""
    counts = {}
    for name, step in steps.items():
        block_ms(step, device, 3)
        counts[name] = max(1, round(BLOCK_MS / block_ms(step, device, 1)))
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            spent[name].append(block_ms(step, device, counts[name]))
    return {name: statistics.median(values) for name, values in spent.items()}


def peak_mib(step: Step, device: str) -> float | None:
    """Peak memory of a step beyond what is allocated before it; None on a CPU."""
    if device != "cuda":
        return None
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(device: str, dry: bool) -> list[dict[str, Any]]:
    """A row for each encoding, shape and variant."""
    rows = []
    for size, length, batch in (("tiny", 16, 2),) if dry else SHAPES:
        for encoding in ENCODINGS:
            steps = {
                name: ours.step(
                    encoding, size, length, batch, 0.1, "all", overrides, device=device
                ).step
                for name, overrides in VARIANTS.items()
            }
            ms = medians_ms(steps, device, 1 if dry else ROUNDS)
            rows += [
                {
                    "encoding": encoding, "size": size, "length": length, "batch": batch,
                    "variant": name, "ms": ms[name], "peak_mib": peak_mib(step, device),
                }
                for name, step in steps.items()
            ]  # fmt: skip
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--to", type=Path, default=ROOT / "runs" / "bench", help="output folder")
    args = parser.parse_args()
    if not args.dry and not torch.cuda.is_available():
        raise SystemExit(
            "benchmarks.gpu needs a GPU and torch finds none: run it on a machine with one, or "
            "with --dry to see that it works"
        )
    device = "cpu" if args.dry else "cuda"
    facts, _ = environment(1, device, gpu_index=None if args.dry else torch.cuda.current_device())
    rows = measure(device, args.dry)
    cells = [
        [
            *(str(row[key]) for key in ("encoding", "size", "length", "batch", "variant")),
            f"{row['ms']:.2f}",
            "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}",
        ]
        for row in rows
    ]
    columns = ["encoding", "size", "length", "batch", "variant", "ms a step", "peak MiB"]
    console().print(table(f"training steps on {facts['gpu'] or 'the CPU'}", columns, cells))
    path = args.to / f"gpu-{datetime.now():%Y-%m-%d_%H-%M-%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "dry": args.dry, "rows": rows}, indent=1))
    console().print(f"written to  {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
