"""Rows of suite v2 made up for the tests of its scores and claims."""

from typing import Any

import polars as pl

from pe_lab.suite.rows import SCHEMA
from pe_lab.suite.suite import load_suite

SUITE = load_suite("v2")
SPLITS = [*SUITE.tasks["flipflop"].thresholds]


def run(
    entry: str,
    seed: int,
    errors: float | list[float | None] | None = 0.0,
    task: str = "flipflop",
    lr: float = 0.003,
    **facts: Any,
) -> list[dict[str, Any]]:
    """Return the rows of a run with these errors by split; None for one that failed."""
    splits = [*SUITE.tasks[task].thresholds]
    values = errors if isinstance(errors, list) else [errors] * len(splits)
    phase = "tuning" if seed >= 1000 else "score"
    state = "failed" if errors is None else "finished"
    one = {
        "suite": SUITE.version, "task": task, "entry": entry, "pe": entry.split("+")[0],
        "phase": phase, "lr": lr, "seed": seed, "seed_init": seed, "steps": 400, "loss": 0.1,
        "run_id": f"{task}-{entry}-{seed}-{lr}", "state": state, "started": 2e9,
    }  # fmt: skip
    pairs = zip(splits, values, strict=True)
    return [{**one, "split": split, "error": error, **facts} for split, error in pairs]


def tuned(entry: str, task: str = "flipflop", lr: float = 0.003) -> list[dict[str, Any]]:
    """Return the tuning runs of an entry by which this rate is chosen."""
    return [
        row
        for rate in SUITE.protocol.rates
        for seed in SUITE.protocol.tuning_seeds
        for row in run(entry, seed, 0.0 if rate == lr else 0.5, task, rate)
    ]


def rows(*several: list[dict[str, Any]]) -> pl.DataFrame:
    """Return the rows of several runs as one table."""
    return pl.DataFrame([row for one in several for row in one], SCHEMA)
