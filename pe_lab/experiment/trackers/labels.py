"""What trackers show of a run: its rows, and at the end its numbers, tables and pictures."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pe_lab.common.errors import reason
from pe_lab.core.metrics import CURVES, IN_DOMAIN, MEAN_OOD, METRICS, TABLED, mean_ood

logger = logging.getLogger("pe_lab")

UNCHARTED = tuple(f"/{metric.name}" for metric in METRICS if not metric.charted)
"""Suffixes of metrics that are logged without a chart."""

SPLIT_COLUMNS = ("split", *TABLED)
LENGTH_COLUMNS = ("split", "length", "error", "n")


def with_mean_ood(row: dict[str, Any], splits: Iterable[str]) -> dict[str, Any]:
    """A row of metrics.jsonl, and its mean out-of-domain error if it has one over all splits."""
    mean = mean_ood(row, splits)
    return row if mean is None else row | {MEAN_OOD: mean}


def closing_row(summary: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last point of a finished run's curves, and all numbers for the runs table."""
    metrics = {k: v for k, v in summary["metrics"].items() if v is not None}
    numbers = with_mean_ood(metrics, summary["splits"])
    row = {k: v for k, v in numbers.items() if k.rpartition("/")[2] in CURVES}
    return {"step": summary["steps"], **row}, numbers


def split_rows(summary: dict[str, Any]) -> list[list[Any]]:
    """The table ``splits``; the cells of a split that does not apply are None."""
    metrics = summary["metrics"]
    return [
        [split, *(metrics.get(f"{prefix}/{kind}") for kind in SPLIT_COLUMNS[1:])]
        for split, prefix in summary["splits"].items()
    ]


def length_rows(summary: dict[str, Any]) -> list[list[Any]]:
    """The table ``lengths``: error by the number of tokens read; a range is named by its upper
    end."""
    return [
        [split, int(bucket.rpartition("-")[2]), cell["error"], cell["n"]]
        for split, kinds in summary["by"].items()
        for bucket, cell in kinds["length"].items()
    ]


def pictures(folder: Path, summary: dict[str, Any]) -> dict[str, str]:
    """The inspection page of some splits; empty where they cannot be made."""
    try:
        from pe_lab.experiment.load_run import inspect_run
        from pe_lab.inspection.page import page

        return {split: page(inspect_run(folder, split)) for split in picture_splits(summary)}
    except Exception as error:
        logger.warning("tracker.wandb.pictures=true, but there are none: %s", reason(error))
        logger.debug("no pictures", exc_info=True)
        return {}


def picture_splits(summary: dict[str, Any]) -> list[str]:
    """The splits to make pictures of: in-domain, and the one with the largest error."""
    errors = {
        split: summary["metrics"][f"{prefix}/error"]
        for split, prefix in summary["splits"].items()
        if prefix is not None and split != IN_DOMAIN
    }
    return [IN_DOMAIN, *([max(errors, key=lambda s: errors[s])] if errors else [])]
