"""How a run shows in wandb: its name, its tags, what is charted and what closes it."""

import shlex
import statistics
from collections.abc import Sequence
from typing import Any

from pe_lab.common.metrics import CURVES, IN_DOMAIN, METRICS, TABLED
from pe_lab.config.schema import Config, plain
from pe_lab.store.sweep_name import keys_of, operational

NAME_LENGTH, TAG_LENGTH = 128, 64
"""wandb refuses longer ones."""

MEAN_OOD = "ood/error"
"""Error averaged over the out-of-domain splits of a row: one column, one chart for all of them."""

UNCHARTED = tuple(f"/{metric.name}" for metric in METRICS if not metric.title)
"""Endings of metrics that are kept but would bury the charts."""

COLUMNS = ("split", *TABLED)
LENGTHS = ("split", "length", "error", "n")


def labels(
    config: Config, run_id: str, sweep: str | None, overrides: Sequence[str]
) -> dict[str, Any]:
    """The arguments of wandb.init that tell runs apart. ``id`` is unique in a runs_dir only;
    ``setting``, beside the configuration, is all that was asked but the seed, for what averages
    over it: the name, which tells only what one sweep varies, is that of other sweeps' runs too.

    Args:
        sweep: what the run's sweep is called; its jobs are one group.
        overrides: the run's own words.
    """
    names, model = config.names, config.model
    tags = [*config.tracker.wandb.tags, names["task"], names["pe"]]
    tags.append(f"{model['n_layers']}L-d{model['d_model']}")
    tags += [names[g] for g in ("experiment",) if g in names]
    if names.get("positions", "sequential") != "sequential":
        tags.append(names["positions"])
    again = f" again {run_id.rpartition('-again-')[2]}" if "-again-" in run_id else ""
    different = _different(sweep, overrides)
    told = [f"{names['pe']}-seed{config.seed}{again}", *different]
    asked = sorted(word for word in _asked(overrides) if not word.startswith("task="))
    return {
        "id": run_id,
        "name": " ".join(told)[:NAME_LENGTH],
        "group": sweep,
        "job_type": names["pe"],
        "tags": list(dict.fromkeys(tag[:TAG_LENGTH] for tag in tags)),
        "config": plain(config) | {"setting": " ".join([names["pe"], *asked])},
        "notes": shlex.join(["pe-lab", *overrides]),
    }


def _different(sweep: str | None, overrides: Sequence[str]) -> list[str]:
    """``d_model=128 lr=0.003``: what was asked for beside encoding and seed; in a sweep, what it
    varies."""
    told = []
    for word in _asked(overrides):
        key, _, value = word.partition("=")
        if key in keys_of(sweep) if sweep else key != "task":
            told.append(f"{key.rpartition('.')[2]}={value}")
    return told


def _asked(overrides: Sequence[str]) -> list[str]:
    """The words beside encoding and seed that can change a number."""
    words = [word.lstrip("+") for word in overrides if not operational(word)]
    return [word for word in words if word.partition("=")[0] not in ("pe", "seed")]


def charted(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl with what is charted beside it."""
    errors = [v for k, v in row.items() if k.startswith("ood/") and k.endswith("/error")]
    known = [error for error in errors if error is not None and MEAN_OOD not in row]
    return row | ({MEAN_OOD: statistics.fmean(known)} if known else {})


def closing(summary: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last row of a finished run, which ends its curves with the closing measurement, and
    the numbers of the runs table."""
    metrics = charted({k: v for k, v in summary["metrics"].items() if v is not None})
    row = {k: v for k, v in metrics.items() if k.rpartition("/")[2] in CURVES}
    return {"step": summary["steps"], **row}, metrics


def split_rows(summary: dict[str, Any]) -> list[list[Any]]:
    """The closing table, ``COLUMNS``; a split that is not applicable has no numbers."""
    metrics = summary["metrics"]
    return [
        [split, *(metrics.get(f"{where}/{kind}") for kind in COLUMNS[1:])]
        for split, where in summary["splits"].items()
    ]


def length_rows(summary: dict[str, Any]) -> list[list[Any]]:
    """Error by the number of tokens read, ``LENGTHS``; of a bucket its upper end."""
    return [
        [split, int(bucket.rpartition("-")[2]), cell["error"], cell["n"]]
        for split, kinds in summary["by"].items()
        for bucket, cell in kinds["length"].items()
    ]


def pictured(summary: dict[str, Any]) -> list[str]:
    """The splits to make pictures of: in-domain, and the one with the largest error."""
    errors = {
        split: summary["metrics"][f"{where}/error"]
        for split, where in summary["splits"].items()
        if where is not None and split != IN_DOMAIN
    }
    return [IN_DOMAIN, *([max(errors, key=lambda s: errors[s])] if errors else [])]
