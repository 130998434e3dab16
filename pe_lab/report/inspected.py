"""The report's section on what the encodings of a few runs did."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from pe_lab.common.errors import PeLabError
from pe_lab.inspection.data import Inspection
from pe_lab.report.data import Section

MAX_RUNS = 8
MAX_RUNS_PER_TASK = 4
"""Limits on the runs that are inspected by default."""


@dataclass(frozen=True)
class Inspected:
    """Inspections as HTML, and a message for each run that could not be inspected."""

    fragments: Sequence[Markup] = ()
    refused: Sequence[str] = ()


def inspections(
    sections: Sequence[Section], runs: str | None
) -> tuple[list[Inspection], list[str]]:
    """Inspections of the given runs, and a message for each run that could not be inspected; by
    default of one run of the best encodings of each task.

    Args:
        runs: their folders, separated by commas, or "none".

    Raises:
        UsageError: one of ``runs`` cannot be inspected.
    """
    paths = _best(sections) if runs is None else [] if runs == "none" else runs.split(",")
    if not paths:
        return [], []
    # Imported here: this is the only part that needs torch.
    from pe_lab.experiment.inspect_run import inspect_run

    found, refused = [], []
    for path in paths:
        try:
            found.append(inspect_run(path))
        except PeLabError as error:
            if runs is not None:
                raise
            refused.append(str(error))
    return found, refused


def _best(sections: Sequence[Section]) -> list[str]:
    """Runs with weights: per task, the lowest seed of the best setting of each of the best
    encodings."""
    each = min(MAX_RUNS_PER_TASK, max(1, MAX_RUNS // max(1, len(sections))))
    paths: list[str] = []
    for section in sections[:MAX_RUNS]:
        found: dict[str, str] = {}
        for setting in section.settings:
            if len(found) == each:
                break
            folders = section.runs.filter(setting=setting.name).sort("seed")["path"]
            with_weights = (path for path in folders if (Path(path) / "checkpoint.pt").is_file())
            if setting.pe not in found and (path := next(with_weights, None)):
                found[setting.pe] = path
        paths += found.values()
    return paths
