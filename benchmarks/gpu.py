"""``make bench-gpu``: how fast everything is on one GPU (docs/gpu.md).

    python -m benchmarks.gpu [--part PART ..] [--encodings PE ..] [--dry]

Each part takes less than ten minutes; what it measures is printed, and written with the card's name
to runs/bench/gpu-<date>.json. ``paper`` trains for longer than that: give it again, and it goes on.
"""

import argparse
import json
import sys
import tempfile
import time
from datetime import datetime
from importlib import metadata
from pathlib import Path

import torch

from benchmarks import gpu_attention, gpu_runs, gpu_step
from benchmarks.found import Found, goal_table
from benchmarks.gpu_clock import Clock
from pe_lab.common.console import console
from pe_lab.experiment.machine import environment

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "cope": "CoPE's attention: ours, by its formula, and plain attention",
    "step": "the training step of each encoding, small",
    "paper_step": "the training step of each encoding, as large as the paper's",
    "paper": "the paper's flip-flop, three seeds each of learned, rope, cope",
}
SECONDS = 480
"""After which a part begins nothing more."""


def measured(part: str, device: torch.device, encodings: list[str], dry: bool, runs: Path) -> Found:
    """What a part finds."""
    clock = Clock(device, 1, 0) if dry else Clock(device, 5, 50)
    match part:
        case "cope":
            return gpu_attention.measure(clock, dry)
        case "step" | "paper_step":
            size = "tiny" if dry else "small" if part == "step" else "paper"
            return gpu_step.measure([size], clock, encodings, SECONDS)
        case _:
            return gpu_runs.paper(device.type, dry, SECONDS, runs)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:<12}{what}" for name, what in PARTS.items()),
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument(
        "--encodings", nargs="+", choices=gpu_step.ENCODINGS, default=list(gpu_step.ENCODINGS),
        metavar="PE", help="of the steps",
    )  # fmt: skip
    parser.add_argument(
        "--dry", action="store_true", help="on a CPU, tiny: that it runs, not how fast"
    )
    return parser.parse_args()


def main() -> None:
    """Measure, print, write."""
    args = arguments()
    if not args.dry and not torch.cuda.is_available():
        raise SystemExit(
            "benchmarks.gpu measures a GPU and torch sees none: give it on a machine that has one, "
            "or with --dry to see that it runs"
        )
    device = torch.device("cpu" if args.dry else "cuda")
    facts, _ = environment(1, device.type)
    facts["versions"]["triton"] = metadata.version("triton")
    facts["dry"] = args.dry
    path = ROOT / "runs" / "bench" / f"gpu-{datetime.now():%Y-%m-%d_%H-%M-%S_%f}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    out, kept = console(), {}
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch) if args.dry else ROOT / "runs" / "gpu"
        for part in args.part:
            print(f"measuring {PARTS[part]} ..", file=sys.stderr)
            began = time.monotonic()
            found = measured(part, device, args.encodings, args.dry, runs)
            kept[part] = {"seconds": round(time.monotonic() - began, 1), **found.kept()}
            # After every part: the next may fail, and time on a GPU is dear.
            path.write_text(json.dumps({**facts, "parts": kept}, indent=1))
            for shown in found.tables:
                out.print(shown)
            if found.goals:
                out.print(goal_table(found.goals))
    out.print(f"written to  {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
