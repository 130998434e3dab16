"""``make bench-jobs``: what many jobs cost the process that launches them, and a run its worker.

python -m benchmarks.jobs [jobs=10000] [runs=96]
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from pe_lab.config.compose import CommandLine
from pe_lab.sweeps.jobs import list_jobs
from pe_lab.sweeps.worker import Work, take_runs

WORDS = [
    "-m", "task=flipflop", "task.length=16", "pe=rope,alibi,t5,cope", "train.lr=0.001,0.003",
    "train.steps=2", "train.warmup=0", "eval.sequences=8", "eval.quick_sequences=8",
    "model.d_model=16", "model.n_layers=1", "model.n_heads=2", "tracker=none",
]  # fmt: skip
"""Trivial runs: eight settings of as many seeds as it takes."""


def main(jobs: int = 10_000, runs: int = 96) -> None:
    """Print what ``jobs`` cost to list, and what each of ``runs`` costs its worker."""
    with tempfile.TemporaryDirectory() as folder:
        for n in (jobs, runs):
            line = [*WORDS, f"runs_dir={folder}", f"seed=range(0,{n // 8})"]
            began = time.process_time()
            listed, _, _ = list_jobs(CommandLine.parse(line))
            work = Work.write(Path(folder) / "jobs.jsonl", "bench", listed, n, None)
            seconds, size = time.process_time() - began, work.file.stat().st_size / 1e6
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{n} jobs listed in {seconds:.1f} s of processor time, {memory:.0f} MiB, "
                  f"file of {size:.1f} MB")  # fmt: skip
        began = time.process_time()
        take_runs(work)
        files = len([*listed[0].folder.path.iterdir()])
        print(f"a run in a worker: {(time.process_time() - began) / n:.2f} s, {files} files")


if __name__ == "__main__":
    main(**{key: int(value) for key, value in (word.split("=") for word in sys.argv[1:])})
