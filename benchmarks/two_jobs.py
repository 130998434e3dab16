"""Two runs of the main job on two cores (``hydra/launcher=joblib``) against the same two in turn.

The clock on the wall, from the start of the command to its end: two cores must be idle. Beside it
stands what these two cores give at best: two processes that do nothing but the products of a step.
Cores that share a core's units, or a clock that falls when both are busy, show there.
"""

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.alternating import Runner, Side
from benchmarks.commands import MAIN_JOB, SHORT, Command, alternated, rows, seconds
from benchmarks.found import Asked, Found, Goal, table

LEAST, AIM = 1.6, 1.9
Kinds = list[tuple[str, tuple[str, ...]]]
SHORTEST: Kinds = [("20 steps", SHORT)]
MAIN: Kinds = [("the main job", ())]
LONGER: Kinds = [("1600 steps", ("train.steps=1600",))]
JOBS = ("-m", *MAIN_JOB, "seed=0,1", "tracker.wandb.mode=disabled")
LAUNCHERS = {
    "in turn": ("hydra/launcher=basic",),
    "side by side": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
}


def products_alone(rounds: int, times: int) -> list[float]:
    """A number a round: two processes' products in turn / side by side, on the wall."""

    def timed(runners: list[Runner], at_once: int) -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda runner: runner.run(times), runners))
        return time.perf_counter() - began

    with Side("ours") as one, Side("ours") as other:
        given = {"size": "small", "length": 64, "batch": 32}
        runners = [side.make("flops.products", **given) for side in (one, other)]
        timed(runners, 1)
        return [timed(runners, 1) / timed(runners, 2) for _ in range(rounds)]


def measure(asked: Asked) -> Found:
    """Both, alternating: the main job as it is, a small part of which is starting two workers, and
    with more steps."""
    found = Found()
    cells = []
    for what, also in asked.pick(SHORTEST, MAIN, MAIN + LONGER):
        commands = {n: Command.pe_lab(*JOBS, *also, *words) for n, words in LAUNCHERS.items()}
        load = os.getloadavg()[0]
        spent = alternated(commands, asked.pick(1, 1, 1, 3))
        found.rows += [{"job": what, "load_before": load, **row} for row in rows(spent)]
        ratio = spent.ratio("in turn", "side by side")
        told = f"two jobs on two cores, {what}, in turn / side by side"
        found.goals.append(Goal(told, ratio, least=LEAST, aim=AIM))
        cells += [
            [what, name, seconds(spent.wall[name]), seconds(spent.cpu[name]), f"{load:.1f}"]
            for name in commands
        ]
    best = products_alone(*asked.pick((1, 2), (3, 200), (5, 200)))
    found.rows.append({"job": "products alone", "ratios": best})
    told = f"{statistics.median(best):.2f} x as fast side by side"
    cells.append(["products alone", "two processes", told, "", f"{os.getloadavg()[0]:.1f}"])
    names = ["each job", "", "s passed", "s of processors", "load before"]
    found.tables = [table("two jobs", names, cells)]
    return found
