"""The published numbers of published.yaml: one for each encoding, size and split; and on which
side of our seeds a number lies."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl
import yaml

from pe_lab.core.metrics import wilson


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
