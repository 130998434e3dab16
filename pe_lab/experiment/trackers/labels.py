"""What trackers show of a run: its rows, and at the end its numbers, tables and pictures."""

import logging
import statistics
from pathlib import Path
from typing import Any

from pe_lab.common.errors import reason
from pe_lab.common.metrics import CURVES, IN_DOMAIN, MEAN_OOD, METRICS, OOD, TABLED

logger = logging.getLogger("pe_lab")

UNCHARTED = tuple(f"/{metric.name}" for metric in METRICS if not metric.title)
"""Suffixes of metrics that are logged without a chart."""

SPLIT_COLUMNS = ("split", *TABLED)
LENGTH_COLUMNS = ("split", "length", "error", "n")


def with_mean_ood(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl, and the mean out-of-domain error if it has such errors."""
    errors = [v for k, v in row.items() if k.startswith(f"{OOD}/") and k.endswith("/error")]
    errors = [error for error in errors if error is not None]
    return row | {MEAN_OOD: statistics.fmean(errors)} if errors else row


def closing_row(summary: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last point of a finished run's curves, and all numbers for the runs table."""
    numbers = with_mean_ood({k: v for k, v in summary["metrics"].items() if v is not None})
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
        from pe_lab.experiment.inspect_run import inspect_run
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
