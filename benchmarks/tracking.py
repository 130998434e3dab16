"""What wandb costs a run: `python -m benchmarks.tracking [PAIRS]`.

Whole processes of `pe-lab`, alternately with `tracker.wandb.mode=offline` and `disabled`: a run
of 20 steps, which is start-up and end, PAIRS times each, and the main job once each. Time that
passed, and processor time of the process and all that it starts, wandb's own process too; what
start-up and end cost is put beside the main job. Linux.
"""

import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MAIN = ["task=flipflop", "pe=cope"]
SHORT = [*MAIN, "train.steps=20", "train.warmup=2", "eval.sequences=64", "eval.quick_sequences=8"]


def measured(words: list[str], mode: str) -> tuple[float, float]:
    """Seconds that a run takes in a folder of its own, and seconds of processors."""
    folder = Path(tempfile.mkdtemp(prefix="pe-lab-tracking-"))
    program = [sys.executable, "-m", "pe_lab", *words, f"tracker.wandb.mode={mode}"]
    before, began = _used(), time.perf_counter()
    try:
        subprocess.run(program, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        passed = time.perf_counter() - began
        _await_orphans()
        return passed, _used() - before
    finally:
        shutil.rmtree(folder)


def _adopt_orphans() -> None:
    """Have what a run leaves running become this process's child, so that it can be counted."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def _await_orphans() -> None:
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def alternated(words: list[str], pairs: int) -> dict[str, tuple[float, float]]:
    """The medians of both modes, which take turns in going first."""
    taken: dict[str, list[tuple[float, float]]] = {"disabled": [], "offline": []}
    for pair in range(pairs):
        for mode in list(taken) if pair % 2 else reversed(list(taken)):
            taken[mode].append(measured(words, mode))
    return {
        mode: (statistics.median(t[0] for t in times), statistics.median(t[1] for t in times))
        for mode, times in taken.items()
    }


def main(pairs: int = 5) -> None:
    """Print both, and the cost of tracking as a share of the main job."""
    _adopt_orphans()
    short, whole = alternated(SHORT, pairs), alternated(MAIN, 1)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; seconds passed / of processors")
    for name, times in ((f"20 steps, median of {pairs}", short), ("main job", whole)):
        for mode in ("disabled", "offline"):
            print(f"{name:<24}{mode:<10}{times[mode][0]:7.2f} / {times[mode][1]:.2f}")
        ratios = (times["offline"][i] / times["disabled"][i] for i in (0, 1))
        print(f"{name:<24}{'ratio':<10}" + " / ".join(f"{ratio:7.3f}" for ratio in ratios))
    for i, kind in enumerate(("passed", "of processors")):
        cost = short["offline"][i] - short["disabled"][i]
        share = 100 * cost / whole["disabled"][i]
        print(f"start-up and end cost {cost:.2f} s {kind}, {share:.1f} % of the main job")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
