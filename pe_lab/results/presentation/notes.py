"""Notes below tables of runs: what a row pools, and runs on which a suite chose the rate."""

import shlex
from collections.abc import Sequence

import polars as pl

from pe_lab.common.output import counted
from pe_lab.results.aggregate import pooled
from pe_lab.results.reader import text
from pe_lab.results.suite import DEFAULT
from pe_lab.results.tuning_runs import COLUMN, tuning


def pooled_keys_note(runs: pl.DataFrame, by: Sequence[str]) -> list[str]:
    """What is ``pooled`` in a row, if anything is."""
    found = pooled(runs, by)
    if not found:
        return []
    keys = ", ".join(
        f"{key} ({', '.join(map(text, values[:5]))}{', ..' if len(values) > 5 else ''})"
        for key, values in found.items()
    )
    return [
        f"by={','.join(by)} pools runs that differ in {keys}: the spread is not one over seeds "
        "alone; add these keys to by, or give them a value"
    ]


def pooled_note(runs: pl.DataFrame, by: Sequence[str], where: str | None) -> list[str]:
    """How many of these runs share a row of a table with others, and what leaves them out; empty
    where none does.

    Args:
        by: the keys whose values make a row; those that are none of the runs' make no difference.
        where: the condition that selected the runs.
    """
    finished = runs.filter(pl.col("state") == "finished")
    group = ["task", *(key for key in by if key in runs.columns)]
    of_tuning = tuning(finished.filter(pl.col(COLUMN).is_null().any().over(group)))
    if of_tuning.is_empty():
        return []
    alone = f"{COLUMN}=null"
    without = f'"{alone}"' if where is None else shlex.quote(f"({where}) and {alone}")
    names = of_tuning[COLUMN].unique().sort()
    commands = [f"pe-lab leaderboard{'' if n == DEFAULT else f' suite={n}'}" for n in names]
    return [
        f"rows pool {_described(of_tuning)} with others: where={without} leaves them out, "
        f"{', '.join(commands)} keeps them apart"
    ]


def left_out_note(left: pl.DataFrame) -> list[str]:
    """How many runs were left out, and why; empty for none."""
    return [f"left out: {_described(left)}"] if len(left) else []


def _described(runs: pl.DataFrame) -> str:
    """``4 runs (seeds 1000,1001) by whose errors suite v1 chose the learning rate``."""
    seeds, names = (runs[key].unique().sort().to_list() for key in ("seed", COLUMN))
    return (
        f"{counted(len(runs), 'run')} (seeds {','.join(map(str, seeds))}) by whose errors suite "
        f"{', '.join(names)} chose the learning rate"
    )
