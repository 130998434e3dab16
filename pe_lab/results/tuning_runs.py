"""Runs on which a suite chose a learning rate: they are no evidence for it, and tables say so."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pe_lab.common.output import counted
from pe_lab.results.leaderboard.entries import Place, Places, phase_of
from pe_lab.results.reader import Record
from pe_lab.results.suite import DEFAULT, TUNING, suites

COLUMN = "tuning_of"


def tuning_column(records: Sequence[Record], config_dir: Path | None = None) -> pl.Series:
    """Of each run the suite that chose a learning rate on it, of several the first by name; null:
    none did.

    A run is recognised as by the leaderboard: by the digest of its task, and its phase. Only the
    configurations of runs on a tuning seed are looked up.

    Args:
        config_dir: a folder whose suites count beside those of conf/.
    """
    found: list[str | None] = [None] * len(records)
    for suite in suites(config_dir):
        places = Places(suite)
        for number, record in enumerate(records):
            if found[number] is None and _is_of_tuning(record, places):
                found[number] = suite.name
    return pl.Series(COLUMN, found, pl.String)


def _is_of_tuning(record: Record, places: Places) -> bool:
    suite, setting, seed = places.suite, record.setting, record.facts.get("seed")
    if setting is None or seed not in suite.protocol.tuning_seeds:
        return False
    if (task := places.task(setting)) is None:
        return False
    seed_init = setting.keys.get("seed.init", seed)
    place = Place(task, record.facts["pe"])
    return phase_of(suite, place, seed, seed_init, setting.config["train"]) == TUNING


def tuning(runs: pl.DataFrame) -> pl.DataFrame:
    """The finished runs on which a suite chose a learning rate."""
    return runs.filter(pl.col("state") == "finished", pl.col(COLUMN).is_not_null())


def without_tuning(runs: pl.DataFrame) -> pl.DataFrame:
    """The other runs, those that are not finished included."""
    return runs.filter(pl.col(COLUMN).is_null())


def pooled_note(runs: pl.DataFrame, by: Sequence[str], where: str | None) -> list[str]:
    """How many of these runs share a row of a table with others, and what leaves them out; empty
    where none does.

    Args:
        by: the keys whose values make a row; those that are none of the runs' make no difference.
        where: the condition that selected the runs.
    """
    finished = runs.filter(pl.col("state") == "finished")
    group = ["task", *(key for key in by if key in runs.columns)]
    pooled = tuning(finished.filter(pl.col(COLUMN).is_null().any().over(group)))
    if pooled.is_empty():
        return []
    alone = f"{COLUMN}=null"
    without = f'"{alone}"' if where is None else shlex.quote(f"({where}) and {alone}")
    names = pooled[COLUMN].unique().sort()
    commands = [f"pe-lab leaderboard{'' if n == DEFAULT else f' suite={n}'}" for n in names]
    return [
        f"rows pool {_described(pooled)} with others: where={without} leaves them out, "
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
