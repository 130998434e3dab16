"""``make bench``: processor time of a training step, in this checkout and at another revision.

    python -m benchmarks.step d9cc1bdd                          # the settings below
    python -m benchmarks.step d9cc1bdd pe=path task.length=512  # one setting

Both sides are whole runs, which alternate. A run's own clock counts processor time here; the first
steps, which build kernels and fill caches, are left out.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, STEPS, WARM = 9, 40, 8
LONG = ("task.length=512", "train.batch_size=16")
ENCODINGS = ["none", "learned", "sinusoidal", "rope", "alibi", "t5", "fire", "cope", "fox", "path"]
SETTINGS = [
    *((f"pe={name}",) for name in ENCODINGS),
    ("pe=cope", *LONG),
    ("pe=cope", "model.dropout=0.1"),
    ("pe=cope", "model.dropout=0.1", *LONG),
    *((f"pe={name}", "train.fast=false") for name in ("rope", "path")),
]
RUN = """
import time
time.perf_counter = time.process_time
from pe_lab.cli.main import entry
entry()
"""


def step_ms(checkout: Path, setting: tuple[str, ...]) -> float:
    """The median of the steps of one run on one thread, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["task=flipflop", *setting, f"runs_dir={folder}", f"train.steps={STEPS}"]
        words += ["train.log_every=1", "eval.every=100000", "eval.sequences=1", "threads=1"]
        command = [sys.executable, "-c", RUN, *words]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=checkout, env=env, check=True, capture_output=True)
        (path,) = Path(folder).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    seconds = [row["time/train_s"] for row in rows if "time/train_s" in row][WARM:]
    steps = [later - one for one, later in pairwise(seconds)]
    return 1e3 * statistics.median(steps)


def main(revision: str, *setting: str) -> None:
    """Print a line for each setting: medians over the rounds, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", revision], capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        print(f"| setting | {revision}, ms | here, ms | times as fast |\n|---|---|---|---|")
        for words in [setting] if setting else SETTINGS:
            times: dict[Path, list[float]] = {Path(folder): [], ROOT: []}
            for n in range(ROUNDS):
                for side in sorted(times, reverse=bool(n % 2)):
                    times[side].append(step_ms(side, words))
            before, here = (statistics.median(each) for each in times.values())
            row = " ".join(words), f"{before:.1f}", f"{here:.1f}", f"{before / here:.2f}"
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
