"""Two runs of the main job on two cores (``hydra/launcher=joblib``) against the same two in turn.

The clock on the wall, from the start of the command to its end: two cores must be idle.
"""

import os

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
    names = ["each job", "", "s passed", "s of processors", "load before"]
    found.tables = [table("two jobs", names, cells)]
    return found
