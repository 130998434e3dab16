"""A long sequence, and many steps.

CoPE at length 8192, batch 1, paper size, dropout 0.1: a whole training step, in a process that
may take ``LIMIT`` of memory. And the resident memory of a small run after some steps and at its
end (``--steps``): measuring, checkpoints and rows included.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.alternating import ROOT, Side, environment
from benchmarks.found import Asked, Found, Goal, table
from benchmarks.gauges import resident
from benchmarks.ours import composed
from pe_lab.experiment.machine import prepare
from pe_lab.store.metrics_log import MetricsLog
from pe_lab.store.run_folder import RunFolder
from pe_lab.training.batches import evaluation_set
from pe_lab.training.plan import plan
from pe_lab.training.trainer import Trainer

GIB = 2**30
LIMIT = 24 * GIB
STEADY = 1.05
SETTLED = 200
"""Steps after which the memory of a run is expected to stay."""


def long_step(asked: Asked) -> dict[str, Any]:
    """Seconds and bytes of one training step."""
    given: dict[str, Any] = {"encoding": "cope", "batch": 1, "dropout": 0.1, "counted": "all"}
    given |= {"size": asked.pick("tiny", "paper", "paper"), "also": []}
    length = asked.pick(32, 2048, 8192)
    with Side("ours") as side:
        # An allocation beyond the limit, or beyond what is free, fails, and nothing else suffers.
        most = min(LIMIT, int(0.9 * _free()))
        resource.prlimit(side.process.pid, resource.RLIMIT_DATA, (most, most))
        side.make("ours.step", **given, length=16).run(1)
        runner = side.make("ours.step", **given, length=length)
        taken = [runner.run(1) for _ in range(asked.pick(1, 1, 2))]
        _, peak = side.ask("resident")
    cpu, wall = min(taken)
    return given | {"length": length, "cpu_s": cpu / 1e3, "wall_s": wall / 1e3, "peak": peak}


def many_steps(steps: int) -> list[tuple[int, int]]:
    """(step, resident bytes) along a run of a small model, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", str(steps)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return [(int(step), int(size)) for step, size in json.loads(done.stdout)]


def watched(steps: int) -> list[tuple[int, int]]:
    """The run itself."""
    small = ("model.n_layers=1", "model.d_model=32", "model.dropout=0.1", "task.length=32")
    often = ("train.batch_size=8", "train.log_every=1", "eval.quick_sequences=8")
    planned = plan(composed("pe=cope", *small, *often, f"train.steps={steps}", "device=cpu"))
    device = prepare(planned.config)
    sets = {split: evaluation_set(planned.task, split, 8) for split in planned.splits}
    seen: list[tuple[int, int]] = []

    def look(step: int, loss: float) -> None:
        if step == SETTLED or step % max(1, steps // 10) == 0:
            seen.append((step, resident()[0]))

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        trainer = Trainer(planned, device, run, sets, lambda: None)
        with MetricsLog(run.metrics, None) as log:
            trainer.fit(log, look)
    return seen


def measure(asked: Asked) -> Found:
    """Both."""
    row = long_step(asked)
    steps = asked.steps or asked.pick(4, 1000, 3000, 100_000)
    seen = many_steps(steps)
    settled = next((size for step, size in seen if step >= SETTLED), seen[0][1])
    last = seen[-1][1]
    goals = [
        Goal(f"cope step, L {row['length']}, batch 1, peak GiB", row["peak"] / GIB, most=24),
        Goal(f"memory after {steps} steps / after {SETTLED}", last / settled, most=STEADY),
    ]
    names = ["length", "s of processors", "s passed", "peak GiB of the process"]
    taken = [f"{row[key]:.1f}" for key in ("cpu_s", "wall_s")]
    first = [str(row["length"]), *taken, f"{row['peak'] / GIB:.2f}"]
    tables = [table("a step of CoPE, paper size, batch 1, dropout 0.1", names, [first])]
    along = [[str(step), f"{size / 2**20:.1f}"] for step, size in seen]
    tables.append(table("a small run of CoPE along its steps", ["step", "resident MiB"], along))
    return Found([row, {"steps": steps, "resident": seen}], goals, tables)


def _free() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


if __name__ == "__main__":
    print(json.dumps(watched(int(sys.argv[1]))))
