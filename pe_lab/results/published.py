"""The published numbers of published.yaml: one for each encoding, size and split; the runs of ours
that are nearest to each; and on which side of our seeds a number lies."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib.resources import files
from typing import Any

import polars as pl
import yaml

from pe_lab.results.groups import RATES, SETTING, grouped, same
from pe_lab.results.statistics import with_interval
from pe_lab.results.table import Kind, by_split, splits_of, text, without_tuning

SCHEMA: dict[str, Kind] = {
    **dict.fromkeys(("source", "where", "task", "pe", "size", "split", "metric"), pl.String),
    **dict.fromkeys(("theirs", "theirs_low", "theirs_high"), pl.Float64),
    "theirs_printed": pl.String,
    "theirs_seeds": pl.Int64,
    "setting": pl.String,
    **dict.fromkeys(("n", "k"), pl.Int64),
    **dict.fromkeys(("p_generalises", "p_low", "p_high", "threshold", "median"), pl.Float64),
    "values": pl.List(pl.Float64),
    **dict.fromkeys(("range_low", "range_high", "ours", "sd"), pl.Float64),
    **dict.fromkeys(("differs", "verdict", "reading", "recipe"), pl.String),
}
# Columns that are those of ``_measured``.
OURS = ("setting", "n", *RATES, "median", "values", "range_low", "range_high", "sd")
# A published number: its columns of ``SCHEMA``, and under ``protocol`` all that the source states
# of the protocol of its split, under our keys.
Number = dict[str, Any]


def published() -> list[Number]:
    """Return every published number, in the order of the file."""
    # Trailing digits count: text, not floats.
    entries = yaml.load(
        files("pe_lab.results").joinpath("published.yaml").read_text("utf-8"),
        Loader=yaml.BaseLoader,
    )
    return [number for entry in entries for row in entry["rows"] for number in _numbers(entry, row)]


def _numbers(entry: Mapping[str, Any], row: Mapping[str, str]) -> list[Number]:
    """Return the number of each split of a row."""
    size = {key: yaml.safe_load(value) for key, value in row.items() if "." in key}
    protocol = {**{key: yaml.safe_load(value) for key, value in entry["setting"].items()}, **size}
    splits = [key for key in row if key not in ("pe", "trained", "encoding", "seeds", *size)]
    seeds = row.get("seeds", entry.get("seeds"))
    return [
        {
            **{key: entry.get(key) for key in ("source", "where", "task", "reading", "recipe")},
            "pe": row["pe"],
            "size": " ".join(f"{key.rpartition('.')[2]}={text(v)}" for key, v in size.items()),
            "split": split,
            "metric": entry.get("metric", "error"),
            **_error(row[split], entry.get("measure", "error in %")),
            "theirs_seeds": None if seeds is None else int(seeds),
            "protocol": {
                key: value
                for key, value in protocol.items()
                if not key.startswith("task.splits.") or key.startswith(f"task.splits.{split}.")
            },
        }
        for split in splits
    ]


def _error(value: str, measure: str) -> Number:
    """Return the error as a share, the bounds between which all errors lie that round to it, and
    the digits as printed."""
    number = Decimal(value)
    half = Decimal(5).scaleb(int(number.as_tuple().exponent) - 1)
    percent = Decimal(100) if measure.endswith("%") else Decimal(1)
    error, half = number / percent, half / percent
    if measure.startswith("accuracy"):
        error = 1 - error
    printed = value
    if measure != "error in %":
        printed = f"{(100 * error).normalize():f} ({measure.partition(' ')[0]} {value})"
    return {
        "theirs": float(error),
        "theirs_low": float(max(Decimal(0), error - half)),
        "theirs_high": float(min(Decimal(1), error + half)),
        "theirs_printed": printed,
    }


def verdict(number: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    """Return on which side of our seeds a published number lies.

    Within ours: the number, as rounded, lies between the lowest and the highest of our seeds, each
    widened to the 95 % Wilson interval of that single run. Ours lower, ours higher: it lies beyond
    them. No verdict: one seed, or seeds on both sides of the threshold with the number in their
    range, of which the middle may have no seed.

    Args:
        cell: of our seeds ``n``, ``k`` up to the threshold, ``range_low`` and ``range_high`` (the
            lowest and the highest bound of a seed).
    """
    if cell["n"] < 2:
        return "one seed: no verdict"
    if number["theirs_high"] < cell["range_low"]:
        return "ours higher"
    if number["theirs_low"] > cell["range_high"]:
        return "ours lower"
    mixed = cell["k"] not in (None, 0, cell["n"])
    return "some seeds generalise: no verdict" if mixed else "within ours"


def compared(runs: pl.DataFrame, numbers: Sequence[Number] | None = None) -> pl.DataFrame:
    """Return one row for each published number, with ours where finished runs of that task and
    encoding measured that split.

    Each setting of ours is matched with the nearest of their sizes, and of several the nearest is
    taken: with the fewest differences among the keys that the source states, then the smallest
    ratios, then the most seeds. Runs on which a suite chose the learning rate are left out.

    Columns: ``source``, ``where``, ``task``, ``pe``, ``size`` (keys in which their rows differ),
    ``split``, ``metric``; ``theirs`` (a share) between ``theirs_low`` and ``theirs_high``, which
    round to it, ``theirs_printed``, ``theirs_seeds``; ``setting``, ``n``, ``k``,
    ``p_generalises``, ``p_low``, ``p_high``, ``threshold``, ``median``, ``values``
    (see ``grouped``), ``range_low`` and ``range_high`` (the lowest and the highest of the seeds,
    each widened to the 95 % Wilson interval of that run), ``ours`` (the mean), ``sd``; ``differs``
    (train.steps 400 for 10000: ours for theirs), ``verdict``, ``reading`` (what had to be assumed),
    ``recipe``.

    ``verdict``: that of ``published.verdict``, or "not run"; "other protocol, " before the former
    where ``differs`` is not empty: it is then no reproduction.

    >>> compared(read_runs("runs")).filter(pl.col("verdict") != "not run")
    """
    numbers = published() if numbers is None else numbers
    finished = without_tuning(runs.filter(pl.col("state") == "finished")) if len(runs) else runs
    measured = {metric: _measured(finished, metric) for metric in {n["metric"] for n in numbers}}
    settings = finished.unique(["pe", "setting"], maintain_order=True).rows_by_key(
        ["task", "pe"], named=True, include_key=True
    )
    matches = [_matches(number, settings, measured[number["metric"]]) for number in numbers]
    nearest: dict[tuple[str, ...], tuple[int, float]] = {}
    for of_number in matches:
        for key, (distance, *_) in of_number.items():
            nearest[key] = min(distance, nearest.get(key, distance))
    rows = []
    for number, of_number in zip(numbers, matches, strict=True):
        row = {**number, "differs": "", "verdict": "not run"}
        near = [match for key, match in of_number.items() if match[0] == nearest[key]]
        if near:
            _, _, _, differs, cell = min(near, key=lambda match: match[:3])
            row |= {name: cell[name] for name in OURS} | {"ours": cell["mean"], "differs": differs}
            row["verdict"] = "other protocol, " * bool(differs) + verdict(number, cell)
        rows.append({name: row.get(name) for name in SCHEMA})
    return pl.DataFrame(rows, SCHEMA)


# A setting of ours for a number: the distance, -n, the setting, what differs, our cell.
Match = tuple[tuple[int, float], int, str, str, dict[str, Any]]


def _matches(
    number: Number, settings: Mapping[Any, Sequence[dict[str, Any]]], cells: Mapping[Any, Any]
) -> dict[tuple[str, ...], Match]:
    """Return the settings of ours with this split, by the table of the number and the setting."""
    table = tuple(number[key] for key in ("source", "where", "task", "pe", "split"))
    matches = {}
    for run in settings.get((number["task"], number["pe"]), []):
        setting = run["setting"]
        if cell := cells.get((number["pe"], setting, number["split"])):
            pairs = {key: (run.get(key), theirs) for key, theirs in number["protocol"].items()}
            pairs = {key: pair for key, pair in pairs.items() if not same(*pair)}
            differs = ", ".join(f"{key} {text(a)} for {text(b)}" for key, (a, b) in pairs.items())
            ratio = sum(_log_ratio(*pair) for pair in pairs.values())
            match = ((len(pairs), ratio), -cell["n"], setting, differs, cell)
            matches[*table, setting] = match
    return matches


def _log_ratio(a: Any, b: Any) -> float:
    """Return how far apart two numbers are; 0 where one is none, or is 0."""
    are_numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return abs(math.log(a / b)) if are_numbers and a * b > 0 else 0.0


def _measured(finished: pl.DataFrame, metric: str) -> dict[Any, dict[str, Any]]:
    """Return (pe, setting, split) -> its row of ``grouped``, with ``range_low`` and
    ``range_high``."""
    if not len(finished):
        return {}
    key, bounds = [*SETTING, "split"], ("error_low", "error_high")
    runs = by_split(finished, (metric, "n_seq", *bounds))
    # Runs have the bounds of their error alone.
    if metric == "error_seq":
        wrong = runs.drop(bounds).with_columns(wrong=pl.col(metric) * pl.col("n_seq"))
        runs = with_interval(wrong, "wrong", "n_seq", *bounds)
    runs = runs.drop_nulls(metric)
    ends = runs.group_by(key).agg(range_low=pl.min(bounds[0]), range_high=pl.max(bounds[1]))
    cells = grouped(finished, SETTING, metric, splits_of(finished)).join(ends, on=key)
    return cells.rows_by_key(key, named=True, unique=True, include_key=True)
