"""The main job as one types it, for CoPE and for RoPE: with everything fast, with
``train.fast=false``, and, with ``--before FOLDER``, as an older checkout does it.

Whole commands, alternating, each in an empty folder; whatever is built at first use, kernels and
bytecode, is built before.
"""

from pathlib import Path

from benchmarks.commands import SHORT, Command, alternated, checked_source, rows, seconds
from benchmarks.found import Asked, Found, Goal, table

LEAST, AIM = 2.0, 4.0


def measure(asked: Asked) -> Found:
    """A row for each encoding and side."""
    short = SHORT if asked.much == "tiny" else ()
    found = Found()
    cells = []
    for pe in asked.pick(["cope"], ["cope"], ["cope", "rope"]):
        words = ("task=flipflop", f"pe={pe}", *short)
        commands = {
            "as it is": Command.pe_lab(*words),
            "train.fast=false": Command.pe_lab(*words, "train.fast=false"),
        }
        sources: list[Path | None] = [None]
        if asked.before is not None:
            sources.append(checked_source(asked.before))
            commands["before"] = Command.pe_lab(*words, source=sources[-1])
        for source in sources if asked.much != "tiny" else []:
            Command.pe_lab("task=flipflop", f"pe={pe}", *SHORT, source=source).spent()
        spent = alternated(commands, asked.pick(1, 1, 1, 3))
        found.rows += [{"pe": pe, **row} for row in rows(spent)]
        old = list(commands)[-1]
        for clock, told in (("wall", "passed"), ("cpu", "of processors")):
            ratio = spent.ratio(old, "as it is", clock)
            what = f"main job, pe={pe}, {old} / as it is, seconds {told}"
            found.goals.append(Goal(what, ratio, least=LEAST, aim=AIM))
        for name in commands:
            ratios = [f"{spent.ratio(name, 'as it is', clock):.2f}" for clock in ("wall", "cpu")]
            cells.append([pe, name, seconds(spent.wall[name]), seconds(spent.cpu[name]), *ratios])
    names = ["pe", "", "s passed", "s of processors", "x passed", "x processors"]
    found.tables = [table("the main job, the whole command", names, cells)]
    return found
