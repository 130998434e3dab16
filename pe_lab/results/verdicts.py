"""What ``pe-lab why`` has recorded of runs. Nothing is measured here, and verdicts are made of the
numbers by this version's rule. docs/why.md defines them."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pe_lab.core.errors import PeLabError
from pe_lab.explain.cells import Cell, Diagnosed, group_cells
from pe_lab.explain.record import read_diagnoses
from pe_lab.store.run_folder import RunFolder


def recorded(runs: pl.DataFrame) -> tuple[dict[str, list[Cell]], list[str]]:
    """Setting -> the diagnosed seeds of each of its splits, and a message for each record that
    cannot be read.

    Args:
        runs: finished ones, as ``table.read_runs`` gives them.
    """
    found: dict[str, list[Diagnosed]] = {}
    unread = []
    for path, task, pe, seed, setting in runs.select(
        "path", "task", "pe", "seed", "setting"
    ).iter_rows():
        try:
            diagnoses = read_diagnoses(RunFolder(Path(path)))
        except PeLabError as error:
            unread.append(f"{error}; until then it has no verdict")
            continue
        some = [Diagnosed(Path(path), task, pe, pe, seed, one) for one in diagnoses]
        found.setdefault(setting, []).extend(some)
    return {setting: group_cells(some) for setting, some in found.items() if some}, unread


def leading(cells: Sequence[Cell]) -> Cell:
    """The split of the most seeds, of those the one with the highest error."""
    return max(cells, key=lambda cell: (len(cell.seeds), cell.mean("plain", "value") or 0.0))


def seeds_text(cell: Cell) -> str:
    """Write ``3/5``: how many of the seeds have the verdict."""
    return f"{cell.verdict.k}/{cell.verdict.n}"
