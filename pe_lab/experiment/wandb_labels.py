"""The name, group and tags of a run in wandb, and its closing rows, tables and pictures."""

import shlex
import statistics
from collections.abc import Sequence
from typing import Any

from pe_lab.common.metrics import CURVES, IN_DOMAIN, MEAN_OOD, METRICS, OOD, TABLED
from pe_lab.config.schema import Config, plain
from pe_lab.store.sweep_name import keys_of, operational

MAX_NAME, MAX_TAG = 128, 64
"""wandb's limits, in characters."""

UNCHARTED = tuple(f"/{metric.name}" for metric in METRICS if not metric.title)
"""Suffixes of metrics that are logged without a chart."""

SPLIT_COLUMNS = ("split", *TABLED)
LENGTH_COLUMNS = ("split", "length", "error", "n")


def init_arguments(
    config: Config, run_id: str, sweep: str | None, overrides: Sequence[str]
) -> dict[str, Any]:
    """The arguments of wandb.init that identify a run.

    ``config`` has a key ``setting`` beside the configuration: the encoding and every override
    that can change a number except the seed, for averages over seeds. The name is not enough for
    that: it has only what varies within one sweep, so runs of two sweeps may share it.

    Args:
        run_id: unique within a runs_dir.
        sweep: the name of the run's sweep; its jobs are one group.
    """
    names, model = config.names, config.model
    tags = [*config.tracker.wandb.tags, names["task"], names["pe"]]
    tags.append(f"{model['n_layers']}L-d{model['d_model']}")
    if "experiment" in names:
        tags.append(names["experiment"])
    if names.get("positions", "sequential") != "sequential":
        tags.append(names["positions"])
    again = f" again {run_id.rpartition('-again-')[2]}" if "-again-" in run_id else ""
    relevant = [override.lstrip("+") for override in overrides if not operational(override)]
    relevant = [line for line in relevant if line.partition("=")[0] not in ("pe", "seed")]
    name = [f"{names['pe']}-seed{config.seed}{again}"]
    for override in relevant:
        key, _, value = override.partition("=")
        if key in keys_of(sweep) if sweep else key != "task":
            name.append(f"{key.rpartition('.')[2]}={value}")
    setting = [names["pe"], *sorted(line for line in relevant if not line.startswith("task="))]
    return {
        "id": run_id,
        "name": " ".join(name)[:MAX_NAME],
        "group": sweep,
        "job_type": names["pe"],
        "tags": list(dict.fromkeys(tag[:MAX_TAG] for tag in tags)),
        "config": plain(config) | {"setting": " ".join(setting)},
        "notes": shlex.join(["pe-lab", *overrides]),
    }


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


def picture_splits(summary: dict[str, Any]) -> list[str]:
    """The splits to make pictures of: in-domain, and the one with the largest error."""
    errors = {
        split: summary["metrics"][f"{prefix}/error"]
        for split, prefix in summary["splits"].items()
        if prefix is not None and split != IN_DOMAIN
    }
    return [IN_DOMAIN, *([max(errors, key=lambda s: errors[s])] if errors else [])]
