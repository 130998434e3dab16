"""evaluations.jsonl: what was measured of a finished run after its training, a row a cell."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.common.errors import RunError
from pe_lab.common.metrics import GENERATED, METRICS
from pe_lab.store.metrics_log import MetricsLog, read_metrics
from pe_lab.store.run_folder import RunFolder

NAME = "evaluations.jsonl"
TRAINED = "trained"
"""The word for the encoding as it was trained."""
FACTS: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("path", "task", "pe"), pl.String),
    "seed": pl.Int64,
    **dict.fromkeys(("setting", "encoding"), pl.String),
    "k": pl.Float64,
    "split": pl.String,
    **dict.fromkeys(("length", "tokens"), pl.Int64),
}
"""The columns that tell a cell."""
MEASURED: dict[str, pl.DataType | type[pl.DataType]] = {
    **{m.name: pl.Int64 if m.unit == "count" else pl.Float64 for m in METRICS},
    "seconds": pl.Float64,
}
WAIT_S = 60.0
"""For the others that add a row to the same folder."""


@dataclass(frozen=True)
class Measurement:
    """A cell of one run: with what it is measured, on what.

    Args:
        trained: whether the encoding is the run's own, as trained.
        pe: the encoding's keys, resolved.
        max_len: the length that the encoding is made for, in positions.
        tokens: in a sequence.
        sequences: how many are read.
        generated: whether the model also writes the answers itself.
    """

    trained: bool
    pe: Mapping[str, Any]
    max_len: int
    split: str
    tokens: int
    sequences: int
    generated: bool


_SAME = ("trained", "pe", "max_len", "split", "tokens", "sequences")
"""What cells that have the same numbers have in common."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a record.

    Raises:
        RunError: a line is none.
    """
    rows = read_metrics(path, remedy="remove that line")
    for number, row in enumerate(rows, start=1):
        if not _is_row(row):
            raise RunError(f"{path}: line {number} is no row that pe-lab eval wrote: remove it")
    return rows


def _is_row(row: Any) -> bool:
    kinds = {"trained": bool, "pe": dict, "tokens": int, "sequences": int, "max_len": int}
    kinds |= {"split": str, "encoding": str}
    if not isinstance(row, dict) or any(type(row.get(name)) is not kinds[name] for name in kinds):
        return False
    numbers = ["k", *MEASURED, *GENERATED]
    return all(type(row.get(name)) in (int, float, type(None)) for name in numbers)


def _key(row: Mapping[str, Any]) -> str:
    return json.dumps([row.get(name) for name in _SAME], sort_keys=True)


class Evaluations:
    """The rows of one run's folder; those that are there stay as they are.

    A row is written whole, and is on the disk when ``add`` returns. Several may add to one
    folder at once. What a kill has left of a row is not read, and gone with the next one.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.began = self._state()
        self.rows = rows_of(self.path) if self.path.exists() else []

    @property
    def path(self) -> Path:
        return self.folder.path / NAME

    def found(self, measurement: Measurement) -> dict[str, Any] | None:
        """The last row of this cell; with generated answers where those are wanted."""
        key = _key(vars(measurement))
        alike = (row for row in reversed(self.rows) if _key(row) == key)
        return next((r for r in alike if r.get("generated") or not measurement.generated), None)

    def add(self, measurement: Measurement, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Append what was measured, and return the row.

        Raises:
            RunError: the disk refuses, another process holds the folder, or the run in it was
                replaced meanwhile.
        """
        row = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in {**vars(measurement), **facts}.items()
        }
        with self.folder.lock(WAIT_S):
            if self._state() != self.began:
                raise RunError(
                    f"{self.folder.path} was changed while it was evaluated: start the same line "
                    "again"
                )
            with MetricsLog(self.path, keep=None) as log:
                log.write(row)
                log.sync()
        self.rows.append(row)
        return row

    def _state(self) -> tuple[int, int] | None:
        """What another run in this folder would have otherwise."""
        try:
            stat = self.folder.checkpoint.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns
