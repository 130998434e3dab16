"""The report's section on what the encodings of a few runs did."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_lab.common.errors import PeLabError
from pe_lab.report.sections import Section

MOST = 8
"""By default, runs of all tasks together; at most EACH per task."""
EACH = 4


@dataclass(frozen=True)
class Inspected:
    """Fragments of HTML, the style and the script they share, and a message for each run that
    could not be inspected."""

    fragments: Sequence[str] = ()
    style: str = ""
    script: str = ""
    refused: Sequence[str] = ()


def inspected(sections: Sequence[Section], asked: str | None) -> Inspected:
    """Inspect the given runs; by default one run of the best encodings of each task.

    Args:
        asked: folders of runs joined by commas, or "none".

    Raises:
        UsageError: a run asked for cannot be looked into.
    """
    paths = _best(sections) if asked is None else [] if asked == "none" else asked.split(",")
    if not paths:
        return Inspected()
    # Imported here: this is the only part that needs torch.
    from pe_lab.experiment.inspect_run import inspect_run
    from pe_lab.inspection.page import page, script, style

    fragments, refused = [], []
    for path in paths:
        try:
            fragments.append(page(inspect_run(path), alone=False))
        except PeLabError as error:
            if asked is not None:
                raise
            refused.append(str(error))
    return Inspected(fragments, style(), script(), refused)


def _best(sections: Sequence[Section]) -> list[str]:
    """For each task the first seed that has its weights, of the best setting of each of the
    first encodings."""
    each = min(EACH, max(1, MOST // max(1, len(sections))))
    paths: list[str] = []
    for section in sections[:MOST]:
        found: dict[str, str] = {}
        for setting in section.settings:
            if len(found) == each:
                break
            runs = section.runs.filter(setting=setting.name).sort("seed")["path"]
            with_weights = (path for path in runs if (Path(path) / "checkpoint.pt").is_file())
            if setting.pe not in found and (path := next(with_weights, None)):
                found[setting.pe] = path
        paths += found.values()
    return paths
