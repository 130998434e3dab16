"""``make bench-jobs``: what many jobs cost the process that launches them, and a run its worker.

python -m benchmarks.jobs [jobs=10000] [runs=100]
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


def main(jobs: int = 10_000, runs: int = 100) -> None:
    began = time.process_time()
    seeds = f"seed=range(0,{jobs // 8})"
    listed, _, _ = list_jobs(CommandLine.parse([*WORDS, seeds]))
    seconds = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.jsonl"
        Work.write(file, "bench", listed, len(listed), None)
        print(f"{len(listed)} jobs: listed in {seconds:.1f} s of processor time, {memory:.0f} MiB, "
              f"file of {file.stat().st_size / 1e6:.1f} MB")  # fmt: skip
        line = CommandLine.parse([*WORDS, f"seed=range(0,{runs // 8})", f"runs_dir={folder}"])
        packed, _, _ = list_jobs(line)
        work = Work.write(file, "bench", packed, len(packed), None)
        began = time.process_time()
        take_runs(work)
        each = (time.process_time() - began) / len(packed)
        files = len([*packed[0].folder.path.iterdir()])
        print(f"{len(packed)} runs in one worker: {each:.2f} s of processor time and {files} files "
              "each")  # fmt: skip


if __name__ == "__main__":
    main(**{key: int(value) for key, value in (word.split("=") for word in sys.argv[1:])})
