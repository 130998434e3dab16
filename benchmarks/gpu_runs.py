"""On a GPU: the flip-flop of the CoPE paper, as whole commands of pe-lab.

d 256, 4 layers, length 512, 10 000 steps of batch 16, three seeds each of learned, rope and cope,
as many as the time allows; run again, it resumes.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.found import Found, table

ROOT = Path(__file__).resolve().parent.parent
PAPER = (
    "experiment=paper/flipflop",
    "pe=learned,rope,cope",
    "seed=0,1,2",
    "model.d_model=256",
    "model.n_layers=4",
    "model.n_heads=4",
    "eval.batch_tokens=65536",
    "tracker.wandb.mode=disabled",
)
TINY = (
    "task.length=16", "model.n_layers=1", "model.n_heads=2", "model.d_model=16", "train.steps=4",
    "train.warmup=1", "train.batch_size=4", "eval.every=2", "eval.sequences=16",
    "eval.quick_sequences=4",
)  # fmt: skip
STOP_S = 60
"""In which a run that is asked to stop has written its checkpoint."""


def pe_lab(*words: str, seconds: float | None = None) -> tuple[float, bool]:
    """How long it took, and whether it came to its end; after ``seconds`` it is asked to stop.

    Raises:
        SystemExit: it failed.
    """
    began = time.monotonic()
    # Not in a session of its own: Ctrl-C stops it too.
    process = subprocess.Popen([sys.executable, "-m", "pe_lab", *words], cwd=ROOT)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
        return time.monotonic() - began, False
    if status:
        raise SystemExit(f"pe-lab {' '.join(words)} ended with status {status}")
    return time.monotonic() - began, True


def paper(device: str, dry: bool, seconds: float, runs: Path) -> Found:
    """Trains on, and tells how it stands beside the published numbers once all runs are done."""
    also = (*TINY, "pe=learned,cope", "seed=0") if dry else ()
    kept = {word.partition("=")[0] for word in also}
    words = [word for word in PAPER if word.partition("=")[0] not in kept]
    given = (*words, *also, f"device={device}", f"runs_dir={runs}")
    took, done = pe_lab("-m", *given, seconds=seconds)
    row: dict[str, Any] = {"line": " ".join(given), "seconds": took, "done": done}
    row["runs"] = [str(path.parent) for path in sorted(runs.glob("*/*/*/summary.json"))]
    if done:
        which = ("task=flipflop", "pe=learned,rope,cope", f"runs_dir={runs}")
        asked = [sys.executable, "-m", "pe_lab", "compare", *which]
        env = {**os.environ, "COLUMNS": "160"}
        told = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        row["compare"] = told.stdout
        print(told.stdout)
    else:
        print("not all runs are done: give the same line again, and they go on", file=sys.stderr)
    finished = [[str(len(row["runs"])), f"{took:.0f}", "yes" if done else "no"]]
    names = ["runs finished", "seconds of this call", "all done"]
    return Found([row], [], [table("the paper's flip-flop", names, finished)])
