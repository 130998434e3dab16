"""Runs on which a suite chose a learning rate: they are no evidence for it, and tables say so."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pe_lab.results.leaderboard.entries import Place, Places, phase_of
from pe_lab.results.reader import Record
from pe_lab.results.suite import TUNING, suites

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
