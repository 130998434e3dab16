"""What a line of jobs costs that are all finished: ``python -m benchmarks.sweeps``.

Sixty tiny runs, trained two at once, then the same line again; medians of the clock on the wall.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.two_jobs import LAUNCHERS
from pe_lab.common.console import console

JOBS = ("-m", "task=flipflop", "pe=cope,rope,alibi,none,learned,t5", "seed=range(10)",
        "tracker.wandb.mode=disabled", "train.steps=1", "train.warmup=0", "eval.sequences=1",
        "eval.quick_sequences=1", "model.d_model=16")  # fmt: skip


def seconds(words: Sequence[str], folder: str) -> float:
    """How long the program takes with these words."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pe_lab", *words, f"runs_dir={folder}/runs"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds([*JOBS, *LAUNCHERS["side by side"]], folder)
        summaries = len(list(Path(folder).glob("runs/*/*/*/summary.json")))
        again = [seconds(JOBS, folder) for _ in range(asked.repeats)]
    console().print(
        f"a line of {summaries} jobs that are all finished: {statistics.median(again):.1f} s"
    )


if __name__ == "__main__":
    main()
