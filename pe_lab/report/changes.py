"""The keys of a task that its splits change."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from pe_lab.results.reader import text


def task_keys(run: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the task in a row of runs, without their prefix."""
    return {key[5:]: value for key, value in run.items() if key.startswith("task.")}


def override(config: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The keys of a task that a split changes, with their values."""
    start = f"splits.{split}."
    return {
        key[len(start) :]: value
        for key, value in config.items()
        if key.startswith(start) and value is not None
    }


def changes_of(runs: pl.DataFrame, splits: list[str]) -> dict[str, list[str]]:
    """The keys that each split changes, if they have one value in all runs."""
    keys = [column for column in runs.columns if column.startswith("task.splits.")]
    alike = [key for key in keys if runs[key].n_unique() == 1]
    config = task_keys(runs.select(alike).row(0, named=True)) if alike else {}
    return {
        split: [f"{key} {text(value)}" for key, value in override(config, split).items()]
        for split in splits
    }
