"""``pe-lab results`` over 10 000 runs: seconds for the whole command, in a process of its own.

One real run of each task is copied to every combination of encodings, widths, rates and seeds, with
the configuration, the names and the errors changed; each copy has a summary of the usual size and a
status, some runs are left without a summary, as a sweep does. Reported are the wall clock and the
processor time, of the fastest of several tries: what else the machine does only adds.

    python -m benchmarks.results [--runs 10000] [--tries 3]
"""

import argparse
import copy
import itertools
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from pe_lab.store.run_folder import RunFolder, run_folders
from pe_lab.store.run_id import identity

ROOT = Path(__file__).parents[1]
TASKS = ("flipflop", "selective_copy", "counting", "brackets")
SMALL = ("train.steps=4", "train.warmup=2", "eval.sequences=64", "tracker.wandb.mode=disabled")
WIDTHS, RATES, SEEDS = (32, 64, 128, 256), (1e-3, 3e-3, 6e-3, 1.2e-2), range(5)
COMMANDS: dict[str, tuple[str, ...]] = {
    "results": (),
    "results by=pe,model.d_model": ("by=pe,model.d_model",),
    "results where=.. format=csv": ("where=train.lr>=3e-3 and not pe=rope", "format=csv"),
}


def pe_lab(*words: str) -> tuple[float, float]:
    """Wall clock and processor seconds of a command line."""
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "pe_lab", *words], check=True, stdout=subprocess.DEVNULL)
    wall, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def make_runs(folder: Path, count: int) -> None:
    """``count`` folders of runs below ``folder``, one in a hundred of them interrupted."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as real:
        for task in TASKS:
            pe_lab(f"task={task}", "pe=cope", f"runs_dir={real}", *SMALL)
        summaries = {run.path.parts[-3]: run.summary() for run in run_folders(Path(real))}
    encodings = {p.stem: yaml.safe_load(p.read_text()) for p in (ROOT / "conf/pe").glob("*.yaml")}
    combinations = itertools.product(WIDTHS, RATES, TASKS, sorted(encodings), SEEDS)
    for width, rate, task, pe, seed in itertools.islice(combinations, count):
        summary = copy.deepcopy(summaries[task])
        assert summary is not None
        config = summary["config"]
        config["seed"], config["train"]["lr"], config["model"]["d_model"] = seed, rate, width
        config["pe"] = encodings[pe]
        summary |= {"pe": pe, "seed": seed, "names": {**summary["names"], "pe": pe}}
        for metric in summary["metrics"]:
            if metric.endswith(("/error", "/error_seq", "/loss")):
                summary["metrics"][metric] = rng.random()
        run = RunFolder.of(str(folder), task, pe, seed, identity(config))
        summary["run_id"] = "-".join(run.path.parts[-3:])
        _write(run, summary, finished=rng.random() > 0.01)


def _write(run: RunFolder, summary: dict[str, Any], finished: bool) -> None:
    run.make()
    status = {"state": "finished" if finished else "interrupted", "step": 4, "steps": 4}
    (run.path / "status.json").write_text(json.dumps(status))
    if finished:
        # Not run.write_json: 10 000 waits for the disk.
        (run.path / "summary.json").write_text(json.dumps(summary, indent=1))
    else:
        (run.path / "config.yaml").write_text(yaml.safe_dump(summary["config"]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the runs here; they are made only once")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not list(folder.glob("*")):
            make_runs(folder, args.runs)
        sizes = [p.stat().st_size for p in folder.glob("*/*/*/summary.json")]
        print(f"{len(sizes)} summaries of {sum(sizes) / len(sizes) / 1000:.1f} kB on average")
        for name, words in COMMANDS.items():
            tries = [pe_lab("results", f"runs_dir={folder}", *words) for _ in range(args.tries)]
            wall, busy = min(tries)
            print(f"{name:32} {wall:.2f} s wall, {busy:.2f} s of processor")


if __name__ == "__main__":
    main()
