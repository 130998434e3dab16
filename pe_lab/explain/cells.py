"""Diagnosed runs as cells: the seeds of a task, an encoding and a split, with their verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.explain.record import Diagnosis
from pe_lab.explain.verdict import Verdict, fails, judge

COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("path", "task", "pe"), pl.String),
    "seed": pl.Int64,
    **dict.fromkeys(("split", "name", "kind"), pl.String),
    **dict.fromkeys(("value", "in_domain", "restored"), pl.Float64),
}


@dataclass(frozen=True)
class Diagnosed:
    """The diagnosis of one run.

    Args:
        label: the encoding, with the keys that tell its setting from others of it.
    """

    path: Path
    task: str
    pe: str
    label: str
    seed: int
    diagnosis: Diagnosis


@dataclass(frozen=True)
class Cell:
    """The diagnosed seeds of a setting on a split."""

    task: str
    pe: str
    split: str
    seeds: Sequence[Diagnosed]

    @cached_property
    def verdict(self) -> Verdict:
        """What its seeds say."""
        return judge(self.task, self.split, [one.diagnosis for one in self.seeds])

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        return self.verdict.sentence(self.pe, self.task, self.split)

    def mean(self, name: str, field: str) -> float | None:
        """The mean over seeds of a row's ``value``, ``in_domain`` or ``restored``, which only the
        seeds that fail have."""
        found = [
            getattr(one.diagnosis.by_name.get(name), field, None)
            for one in self.seeds
            if field != "restored" or fails(self.task, self.split, one.diagnosis)
        ]
        numbers = [value for value in found if value is not None]
        return sum(numbers) / len(numbers) if numbers else None

    def facts(self) -> dict[str, Any]:
        """The verdict as JSON has it."""
        names = {"task": self.task, "pe": self.pe, "split": self.split}
        return {**names, **asdict(self.verdict), "sentence": self.sentence}


def group_cells(found: Iterable[Diagnosed]) -> list[Cell]:
    """The cells, in the order of their first run."""
    cells: dict[tuple[str, str, str], list[Diagnosed]] = {}
    for one in found:
        cells.setdefault((one.task, one.label, one.diagnosis.split), []).append(one)
    return [Cell(*key, seeds) for key, seeds in cells.items()]


def build_frame(found: Iterable[Diagnosed]) -> pl.DataFrame:
    """A row for each number of each run."""
    rows = [
        {"path": str(one.path), "task": one.task, "pe": one.label, "seed": one.seed,
         "split": one.diagnosis.split, **asdict(row)}
        for one in found
        for row in one.diagnosis.rows
    ]  # fmt: skip
    return pl.DataFrame(rows, COLUMNS)
