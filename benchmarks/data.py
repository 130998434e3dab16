"""Drawing the data against a training step without an encoding, the cheapest there is.

Small presets. A draw gives many batches at once, so a batch's share of it is what counts.
"""

import importlib.resources
from itertools import count, cycle
from typing import Any

from benchmarks.alternating import Side, alternated
from benchmarks.found import Asked, Found, Goal, table
from benchmarks.ours import Made, composed, our_stepper
from pe_lab.training.batches import BATCHES_A_DRAW, TrainData
from pe_lab.training.plan import plan

MOST = 0.02


def drawing(task: str) -> Made:
    """The batches of one draw, the next one each time."""
    planned = plan(composed(f"task={task}", "pe=none"))
    data, draw = TrainData(planned.task, 0, planned.config.train.batch_size), count()

    def run() -> None:
        first = BATCHES_A_DRAW * next(draw)
        for number in range(first, first + BATCHES_A_DRAW):
            data.batch(number)

    return Made(run)


def training(task: str, pe: str) -> Made:
    """A step on batches that are there, in turn."""
    planned = plan(composed(f"task={task}", f"pe={pe}"))
    cfg = planned.config.train
    step, data = our_stepper(cfg, planned.model()), TrainData(planned.task, 0, cfg.batch_size)
    batches = cycle([data.batch(number) for number in range(BATCHES_A_DRAW)])

    def run() -> None:
        batch = next(batches)
        step(batch, planned.task.trained(batch))

    return Made(run, {"tokens": planned.task.n_tokens, "batch": cfg.batch_size})


def measure(asked: Asked) -> Found:
    """A row for each task."""
    files = importlib.resources.files("pe_lab.conf").joinpath("task").iterdir()
    every = sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))
    rows: list[dict[str, Any]] = []
    with Side("ours") as side:
        for task in asked.pick(["flipflop"], every, every):
            runners = {"draw": side.make("data.drawing", task=task)}
            runners["step"] = side.make("data.training", task=task, pe="none")
            times = alternated(runners, 2 * asked.seconds, asked.fewest)
            share = times.ratio("draw", "step") / BATCHES_A_DRAW
            facts = runners["step"].facts
            batch_ms = times.ms("draw") / BATCHES_A_DRAW
            rows.append({"task": task, **facts, **times.kept(), "batch_ms": batch_ms})
            rows[-1]["share"] = share
            side.clear()
    goals = [Goal(f"drawing {r['task']}, share of a step", r["share"], most=MOST) for r in rows]
    cells = [
        [
            *(str(row[key]) for key in ("task", "tokens", "batch")),
            f"{row['batch_ms']:.3f}",
            f"{row['cpu_ms']['step']:.2f}",
            f"{row['share']:.2%}{' !' if goal.missed else ''}",
        ]
        for row, goal in zip(rows, goals, strict=True)
    ]
    names = ["task", "tokens", "batch", "ms a batch", "ms a step", "share"]
    shown = table("drawing the data, beside a step with pe=none: processor ms", names, cells)
    return Found(rows, goals, [shown])
