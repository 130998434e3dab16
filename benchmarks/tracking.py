"""What wandb costs a run: whole runs, alternately with ``tracker.wandb.mode=offline`` (which writes
to the disk alone) and ``disabled``.

A run of 20 steps is start-up and end; what wandb adds to it is put beside the main job.
"""

from benchmarks.commands import MAIN_JOB, SHORT, Command, alternated, rows, seconds
from benchmarks.found import Asked, Found, table

MODES = ("disabled", "offline")


def measure(asked: Asked) -> Found:
    """Short runs in pairs, and the main job once each."""
    short = alternated({m: _run(m, SHORT) for m in MODES}, asked.pick(1, 2, 3, 5))
    rest = SHORT if asked.much == "tiny" else ()
    whole = alternated({m: _run(m, rest) for m in MODES}, 1)
    found = Found([{"short": rows(short), "main_job": rows(whole)}])
    cells = []
    for clock, told in (("wall", "passed"), ("cpu", "of processors")):
        cost = short.median("offline", clock) - short.median("disabled", clock)
        share = cost / whole.median("disabled", clock)
        found.rows[0][f"cost_{clock}_s"], found.rows[0][f"share_{clock}"] = cost, share
        for name, spent in (("20 steps", short), ("main job", whole)):
            times = [seconds(getattr(spent, clock)[m]) for m in MODES]
            ratio = spent.ratio("offline", "disabled", clock)
            cells.append([f"{name}, s {told}", *times, f"{ratio:.3f}"])
        cells.append([f"share of the main job, {told}", "", f"{cost:.2f}", f"{share:.1%}"])
    found.tables = [table("tracking: start-up and end of a run", ["", *MODES, ""], cells)]
    return found


def _run(mode: str, also: tuple[str, ...]) -> Command:
    return Command.pe_lab(*MAIN_JOB, *also, f"tracker.wandb.mode={mode}")
