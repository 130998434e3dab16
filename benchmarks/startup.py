"""From the command to its answer, and to the first training step: whole commands."""

from benchmarks.commands import MAIN_JOB, Command, alternated, rows, seconds
from benchmarks.found import Asked, Found, table

ONE_STEP = ("train.steps=1", "train.warmup=0", "eval.sequences=1", "eval.quick_sequences=1")
COMMANDS = {
    "python -c pass": Command(("-c", "pass")),
    "python -c 'import torch'": Command(("-c", "import torch")),
    "pe-lab --help": Command.pe_lab("--help"),
    "pe-lab --cfg job": Command.pe_lab(*MAIN_JOB, "--cfg", "job"),
    "one step, without wandb": Command.pe_lab(*MAIN_JOB, *ONE_STEP, "tracker.wandb.mode=disabled"),
    "one step": Command.pe_lab(*MAIN_JOB, *ONE_STEP),
}
"""The last two train one step and measure every split on one sequence."""


def measure(asked: Asked) -> Found:
    """Every command in turn, several times."""
    names = asked.pick(["pe-lab --help"], list(COMMANDS), list(COMMANDS))
    spent = alternated({name: COMMANDS[name] for name in names}, asked.pick(1, 1, 3))
    cells = [
        [name, f"{spent.median(name):.2f}", f"{spent.median(name, 'cpu'):.2f}", seconds(each)]
        for name, each in spent.wall.items()
    ]
    header = ["", "s passed, median", "s of processors", "s passed, each time"]
    return Found(rows(spent), tables=[table("start-up", header, cells)])
