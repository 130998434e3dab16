"""``make bench``: how fast everything is, beside what was asked for.

    python -m benchmarks [--part PART ..] [--quick | --whole] [--encodings E ..] [--before FOLDER]
                         [--steps N]

Parts run in turn, each in processes of its own; what they measure is printed, and written with all
settings to runs/bench/<date>.json. The machine should be idle: ratios are taken side by side, but
two processes that are to gain from two cores need both.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.alternating import SideError
from benchmarks.cpu import cpu_name
from benchmarks.formulas import FORMULAS
from benchmarks.found import Asked, Found, Goal, goal_table
from pe_lab.common.console import console
from pe_lab.experiment.machine import environment

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "matmul": "the machine's limit",
    "attention": "attention against its formula",
    "step": "a training step against x-transformers",
    "cope_step": "CoPE's step against RoPE's",
    "decoding": "generating with a key cache and without",
    "memory": "peak memory of CoPE's attention",
    "scale": "length 8192; memory over many steps",
    "data": "the share of data generation",
    "startup": "from the command to the first step",
    "main_job": "the main job, before and after",
    "two_jobs": "two jobs on two cores",
    "tracking": "the share of tracking",
}
LONGER = ("two_jobs", "tracking")
"""Of whole main jobs, several each: ``--quick`` leaves them out."""


def command_line() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:<12}{what}" for name, what in PARTS.items()),
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=[], metavar="PART")
    much = parser.add_mutually_exclusive_group()
    for name, told in (
        ("quick", f"a few rows, two rounds, and not the parts {' and '.join(LONGER)}"),
        ("whole", "every row, an hour and more"),
        ("tiny", argparse.SUPPRESS),
    ):
        much.add_argument(f"--{name}", dest="much", action="store_const", const=name, help=told)
    parser.add_argument(
        "--before", type=Path, help="main_job: a checkout of an older version to run beside this"
    )
    parser.add_argument(
        "--encodings",
        nargs="+",
        default=[],
        choices=FORMULAS,
        help="of attention, step and decoding",
    )
    parser.add_argument("--steps", type=int, help="scale: steps of the run whose memory is watched")
    parser.add_argument("--to", type=Path, default=ROOT / "runs" / "bench", help="the folder")
    args = parser.parse_args()
    args.part = args.part or [p for p in PARTS if args.much != "quick" or p not in LONGER]
    return args


def main() -> int:
    """Measure, print, write; 1 where a part failed."""
    args = command_line()
    asked = Asked(args.much or "usual", args.before, tuple(args.encodings), args.steps)
    if "step" in args.part and find_spec("x_transformers") is None:
        raise SystemExit(
            "part step compares with x-transformers, which is not installed: pip install -c "
            "constraints.txt -e '.[peers]', or name other parts, --part attention"
        )
    facts, _ = environment(1, "cpu")
    with suppress(metadata.PackageNotFoundError):
        facts["versions"]["x-transformers"] = metadata.version("x-transformers")
    facts |= {"cpu": cpu_name(), "cores": os.cpu_count(), "much": asked.much}
    facts["sides"] = "ours: freed memory kept; shipped: glibc's allocator as it is; tuned: kept"
    path = args.to / f"{datetime.now():%Y-%m-%d_%H-%M-%S_%f}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    out = console()
    goals: list[Goal] = []
    kept: dict[str, Any] = {}
    failed = False
    for part in args.part:
        print(f"measuring {PARTS[part]} ..", file=sys.stderr)
        began, load = time.perf_counter(), os.getloadavg()[0]
        try:
            found = import_module(f"benchmarks.{part}").measure(asked)
        except (SideError, subprocess.CalledProcessError) as error:
            # The other parts are still worth their time.
            print(f"{part} failed: {error}", file=sys.stderr)
            found, failed = Found(), True
            kept[part] = {"failed": str(error)}
        else:
            taken = {"seconds": round(time.perf_counter() - began, 1), "load_before": load}
            kept[part] = {**taken, **found.kept()}
        # After every part: who stops the next one keeps this.
        path.write_text(json.dumps({**facts, "parts": kept}, indent=1))
        goals += found.goals
        for shown in found.tables:
            out.print(shown)
    if goals:
        out.print(goal_table(goals))
    out.print(f"written to  {path}", soft_wrap=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
