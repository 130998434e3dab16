"""``make bench``: how fast pe-lab is.

    python -m benchmarks [--part PART ..] [--quick] [--before FOLDER]

Each part prints a table; all numbers, settings and versions go to runs/bench/<date>.json. The
machine should be otherwise idle.
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

from benchmarks.parts import Scope
from benchmarks.sides import SideError
from pe_lab.core.console import console
from pe_lab.experiment.environment import environment

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "attention": "CoPE's attention against the listing of its paper, time and memory",
    "step": "a training step against x-transformers",
    "decoding": "generation with a key cache and without",
    "main_job": "the main job as a whole command",
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:<12}{what}" for name, what in PARTS.items()),
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="scope", action="store_const", const="quick",
                      default="usual", help="few rows and rounds")  # fmt: skip
    size.add_argument("--tiny", dest="scope", action="store_const", const="tiny",
                      help=argparse.SUPPRESS)  # fmt: skip
    parser.add_argument("--before", type=Path, help="main_job: a checkout to compare with")
    parser.add_argument("--to", type=Path, default=ROOT / "runs" / "bench", help="output folder")
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; 1 where a part failed."""
    args = arguments()
    if "step" in args.part and find_spec("x_transformers") is None:
        raise SystemExit(
            "part step compares with x-transformers, which is not installed: pip install -c "
            "constraints.txt -e '.[peers]', or name other parts, --part attention"
        )
    facts = environment(1, "cpu")
    with suppress(metadata.PackageNotFoundError):
        facts["versions"]["x-transformers"] = metadata.version("x-transformers")
    facts |= {"cpu": facts["processor"], "cores": os.cpu_count(), "scope": args.scope}
    path = args.to / f"{datetime.now():%Y-%m-%d_%H-%M-%S_%f}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    out, scope = console(), Scope(args.scope, args.before)
    parts: dict[str, Any] = {}
    failed = False
    for part in args.part:
        print(f"measuring {PARTS[part]} ..", file=sys.stderr)
        began, load = time.perf_counter(), os.getloadavg()[0]
        try:
            measured = import_module(f"benchmarks.{part}").measure(scope)
        except (SideError, subprocess.CalledProcessError) as error:
            print(f"{part} failed: {error}", file=sys.stderr)
            parts[part], failed = {"failed": str(error)}, True
        else:
            seconds = round(time.perf_counter() - began, 1)
            parts[part] = {"seconds": seconds, "load_before": load, "rows": measured.rows}
            out.print(measured.table)
        # Written after every part: an interruption keeps those before it.
        path.write_text(json.dumps({**facts, "parts": parts}, indent=1))
    out.print(f"written to  {path}", soft_wrap=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
