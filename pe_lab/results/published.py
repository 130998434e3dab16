"""The published numbers of published.yaml: one for each encoding, size and split; the runs of ours
that are nearest to each; and on which side of our seeds a number lies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl
import yaml

from pe_lab.core.metrics import metric_name, wilson
from pe_lab.results.aggregate import SETTING, THRESHOLDED, grouped
from pe_lab.results.frame import splits_of
from pe_lab.results.leaderboard.entries import without_tuning
from pe_lab.results.reader import same, text


@dataclass(frozen=True)
class Published:
    """One published error, a share; whatever rounds to it lies between ``low`` and ``high``."""

    source: str
    where: str
    task: str
    pe: str
    size: dict[str, Any]
    """The keys in which the rows of a table differ."""
    setting: dict[str, Any]
    """All that the source states of the protocol of this split, with ``size``, under our keys."""
    split: str
    metric: str
    printed: str
    """In %, with the digits of the source; for an accuracy, with the printed number."""
    error: float
    low: float
    high: float
    seeds: int | None
    reading: str | None
    recipe: str | None


@dataclass(frozen=True)
class Extrapolated:
    """A row of the table of ``pe-lab extrapolate``.

    Args:
        pe: what it is called.
        trained: the run that is evaluated: rope, rope + logn or hfwa.
        encoding: what is put in place of its encoding, as in ``pe-lab eval``; None: nothing.
        published: by split; empty where the source does not have it.
    """

    pe: str
    trained: str
    encoding: str | None
    published: dict[str, Published]


def published() -> list[Published]:
    """Every published number, in the order of the file."""
    return [number for entry in _entries() for row in entry["rows"] for number in _row(entry, row)]


@cache
def extrapolated() -> tuple[Extrapolated, ...]:
    """The rows that ``pe-lab extrapolate`` makes, in the order of the file."""
    return tuple(
        Extrapolated(
            row["pe"],
            row["trained"],
            row.get("encoding"),
            {number.split: number for number in _row(entry, row)},
        )
        for entry in _entries()
        for row in entry["rows"]
        if "trained" in row
    )


def _entries() -> list[dict[str, Any]]:
    # Trailing digits count: text, not floats.
    content = files("pe_lab.results").joinpath("published.yaml").read_text("utf-8")
    entries: list[dict[str, Any]] = yaml.load(content, Loader=yaml.BaseLoader)
    return entries


def _row(entry: dict[str, Any], row: dict[str, str]) -> list[Published]:
    size = {key: _value(value) for key, value in row.items() if "." in key}
    protocol = {**{key: _value(value) for key, value in entry["setting"].items()}, **size}
    splits = [key for key in row if key not in ("pe", "trained", "encoding", "seeds", *size)]
    seeds = row.get("seeds", entry.get("seeds"))
    return [
        Published(
            source=entry["source"],
            where=entry["where"],
            task=entry["task"],
            pe=row["pe"],
            size=size,
            setting={key: value for key, value in protocol.items() if _concerns(key, split)},
            split=split,
            metric=entry.get("metric", "error"),
            **_error(row[split], entry.get("measure", "error in %")),
            seeds=None if seeds is None else int(seeds),
            reading=entry.get("reading"),
            recipe=entry.get("recipe"),
        )
        for split in splits
    ]


def _concerns(key: str, split: str) -> bool:
    return not key.startswith("task.splits.") or key.startswith(f"task.splits.{split}.")


def _error(value: str, measure: str) -> dict[str, Any]:
    number = Decimal(value)
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    half = Decimal(5).scaleb(exponent - 1)
    percent = Decimal(100) if measure.endswith("%") else Decimal(1)
    error, half = number / percent, half / percent
    if measure.startswith("accuracy"):
        error = 1 - error
    printed = value
    if measure != "error in %":
        printed = f"{(100 * error).normalize():f} ({measure.partition(' ')[0]} {value})"
    low, high = max(Decimal(0), error - half), min(Decimal(1), error + half)
    return {"printed": printed, "error": float(error), "low": float(low), "high": float(high)}


def _value(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return yaml.safe_load(text)
    return int(text) if text.isdigit() else number


def verdict(number: Published, cell: Mapping[str, Any]) -> str:
    """On which side of our seeds a published number lies.

    Within ours: the number, as rounded, lies between the lowest and the highest of our seeds, each
    widened to the 95 % Wilson interval of that single run. Ours lower, ours higher: it lies beyond
    them. No verdict: one seed, or two clusters with the number in their range.

    Args:
        cell: of our seeds ``n``, ``range_low`` and ``range_high`` (the lowest and the highest
            bound of ``with_bounds``) and ``clusters`` (whether they fall into two).
    """
    if cell["n"] < 2:
        return "one seed: no verdict"
    if number.high < cell["range_low"]:
        return "ours higher"
    if number.low > cell["range_high"]:
        return "ours lower"
    return "two clusters: no verdict" if cell["clusters"] else "within ours"


def with_bounds(runs: pl.DataFrame, share: str, n: str) -> pl.DataFrame:
    """With ``<share>_low`` and ``<share>_high``, the 95 % Wilson interval of each run's share of n
    answers or sequences; null where the run did not measure it."""
    pairs = runs.select(share, n).iter_rows()
    found = [(None, None) if None in pair else wilson(pair[0] * pair[1], pair[1]) for pair in pairs]
    return runs.with_columns(
        pl.Series(f"{share}_low", [low for low, _ in found], pl.Float64),
        pl.Series(f"{share}_high", [high for _, high in found], pl.Float64),
    )


SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("source", "where", "task", "pe", "size", "split", "metric"), pl.String),
    **dict.fromkeys(("theirs", "theirs_low", "theirs_high"), pl.Float64),
    "theirs_printed": pl.String,
    "theirs_seeds": pl.Int64,
    "setting": pl.String,
    **dict.fromkeys(("n", "k"), pl.Int64),
    **dict.fromkeys(("p_generalises", "p_low", "p_high", "threshold", "median"), pl.Float64),
    "clusters": pl.Boolean,
    "values": pl.List(pl.Float64),
    **dict.fromkeys(("range_low", "range_high", "ours", "sd"), pl.Float64),
    **dict.fromkeys(("differs", "verdict", "reading", "recipe"), pl.String),
}

OURS = (
    "setting", "n", *THRESHOLDED, "median", "clusters", "values", "range_low", "range_high",
    "sd",
)  # fmt: skip
"""Columns that are those of ``_measured``."""


@dataclass(frozen=True)
class _Match:
    """A setting of ours for a number.

    Args:
        differs: key -> our value and theirs where they differ.
        cell: our row of ``grouped``.
    """

    differs: dict[str, tuple[Any, Any]]
    cell: dict[str, Any]

    @property
    def distance(self) -> tuple[int, float]:
        """How many keys differ, and the log-ratios of those that are numbers."""
        pairs = [(a, b) for a, b in self.differs.values() if _is_number(a) and _is_number(b)]
        return len(self.differs), sum(abs(math.log(a / b)) for a, b in pairs if a * b > 0)


def compared(runs: pl.DataFrame, numbers: Sequence[Published] | None = None) -> pl.DataFrame:
    """One row for each published number, with ours where finished runs of that task and encoding
    measured that split. Each setting of ours is matched with the nearest of their sizes, and of
    several the nearest is taken: with the fewest differences among the keys that the source
    states, then the smallest ratios, then the most seeds. Runs on which a suite chose the learning
    rate are left out.

    Columns: ``source``, ``where``, ``task``, ``pe``, ``size`` (keys in which their rows differ),
    ``split``, ``metric``; ``theirs`` (a share) between ``theirs_low`` and ``theirs_high``, which
    round to it, ``theirs_printed``, ``theirs_seeds``; ``setting``, ``n``, ``k``,
    ``p_generalises``, ``p_low``, ``p_high``, ``threshold``, ``median``, ``clusters``, ``values``
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
    measured = {metric: _measured(finished, metric) for metric in {n.metric for n in numbers}}
    ours = finished.unique(["pe", "setting"], maintain_order=True)
    settings = ours.rows_by_key(["task", "pe"], named=True, include_key=True)
    matches: list[dict[tuple[str, ...], _Match]] = []
    for number in numbers:
        table = (number.source, number.where, number.task, number.pe, number.split)
        cells = measured[number.metric]
        matches.append(
            {
                (*table, setting["setting"]): _Match(
                    {
                        key: (setting.get(key), theirs)
                        for key, theirs in number.setting.items()
                        if not same(setting.get(key), theirs)
                    },
                    cell,
                )
                for setting in settings.get((number.task, number.pe), [])
                if (cell := cells.get((number.pe, setting["setting"], number.split)))
            }
        )
    nearest: dict[tuple[str, ...], tuple[int, float]] = {}
    for found in matches:
        for key, run in found.items():
            nearest[key] = min(run.distance, nearest.get(key, run.distance))
    rows = []
    for number, found in zip(numbers, matches, strict=True):
        nearby = [run for key, run in found.items() if run.distance == nearest[key]]
        best = min(
            nearby,
            key=lambda run: (run.distance, -run.cell["n"], run.cell["setting"]),
            default=None,
        )
        rows.append(_compared_row(number, best))
    return pl.DataFrame(rows, SCHEMA)


def _measured(finished: pl.DataFrame, metric: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(pe, setting, split) -> its row of ``grouped``, with ``range_low`` and ``range_high``."""
    if not len(finished):
        return {}
    splits = splits_of(finished)
    if metric == "error_seq":
        # Runs have the bounds of their error alone.
        for split in splits:
            share = metric_name(split, metric)
            if share in finished.columns:
                finished = with_bounds(finished, share, metric_name(split, "n_seq"))
    kinds = (metric, f"{metric}_low", f"{metric}_high")
    tables = [grouped(finished, SETTING, kind, splits) for kind in kinds]
    cells = {}
    for rows in zip(*(table.iter_rows(named=True) for table in tables), strict=True):
        cell, lows, highs = rows
        if cell["mean"] is None:
            continue
        cell["range_low"], cell["range_high"] = lows["values"][0], highs["values"][-1]
        cells[cell["pe"], cell["setting"], cell["split"]] = cell
    return cells


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _compared_row(number: Published, match: _Match | None) -> dict[str, Any]:
    shared = ("source", "where", "task", "pe", "split", "metric", "reading", "recipe")
    row = {name: getattr(number, name) for name in shared}
    row |= {
        "size": " ".join(f"{key.rpartition('.')[2]}={text(v)}" for key, v in number.size.items()),
        "theirs": number.error,
        "theirs_low": number.low,
        "theirs_high": number.high,
        "theirs_printed": number.printed,
        "theirs_seeds": number.seeds,
        "differs": "",
        "verdict": "not run",
    }
    if match is not None:
        row |= {name: match.cell[name] for name in OURS}
        pairs = match.differs.items()
        row["verdict"] = "other protocol, " * bool(pairs) + verdict(number, match.cell)
        row["ours"] = match.cell["mean"]
        row["differs"] = ", ".join(f"{key} {text(a)} for {text(b)}" for key, (a, b) in pairs)
    return row
