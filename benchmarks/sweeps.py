"""What a sweep over two processes gains over one, and what a line costs that is wholly done.

    python -m benchmarks.sweeps

Two runs of the main job, in sequence and side by side, alternating, each time in an empty folder;
medians of the clock on the wall, from the start of the command to its end. Two cores must be idle:
the load before each measurement is in the table.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.cpu import cpu_name
from pe_lab.console import console

JOBS = ("-m", "task=flipflop", "pe=cope", "seed=0,1", "tracker.wandb.mode=disabled")
LAUNCHERS = {
    "in sequence": ("hydra/launcher=basic",),
    "side by side": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
}
DONE = ("-m", "task=flipflop", "pe=cope,rope,alibi,none,learned,t5", "seed=range(10)",
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
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    table = Table(title=f"two runs of {asked.steps} steps, {cpu_name()}", title_justify="left")
    for column in ("", "seconds, each time", "median", "load before"):
        table.add_column(column)
    times: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    loads: dict[str, list[str]] = {name: [] for name in LAUNCHERS}
    for _ in range(asked.repeats):
        for name, launcher in LAUNCHERS.items():
            with tempfile.TemporaryDirectory() as folder:
                loads[name].append(f"{os.getloadavg()[0]:.1f}")
                words = [*JOBS, *launcher, f"train.steps={asked.steps}"]
                times[name].append(seconds(words, folder))
    for name, taken in times.items():
        each = " ".join(f"{t:.1f}" for t in taken)
        table.add_row(name, each, f"{statistics.median(taken):.1f}", " ".join(loads[name]))
    console().print(table)
    one, two = (statistics.median(taken) for taken in times.values())
    console().print(f"side by side is {one / two:.2f} times as fast")
    with tempfile.TemporaryDirectory() as folder:
        seconds([*DONE, *LAUNCHERS["side by side"]], folder)
        summaries = len(list(Path(folder).glob("runs/*/*/*/summary.json")))
        again = [seconds(DONE, folder) for _ in range(asked.repeats)]
    console().print(
        f"a line of {summaries} jobs that are all finished: {statistics.median(again):.1f} s"
    )


if __name__ == "__main__":
    main()
