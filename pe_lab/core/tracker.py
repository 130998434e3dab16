"""The base of trackers, which show a run elsewhere while it is made."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker may need to know of a run.

    Args:
        folder: the run folder, absolute.
        run_id: unique within a runs_dir.
        config: the resolved configuration; ``names`` in it holds the chosen option of each group.
        overrides: of the command line.
        environment: versions, git revision and machine, as in environment.json; ``sweep`` in it is
            the name of the run's sweep, None for a run by itself.
        rows: the rows of metrics.jsonl so far.
        splits: all splits, with those that are too long for the encoding.
    """

    folder: Path
    run_id: str
    config: dict[str, Any]
    overrides: Sequence[str]
    environment: dict[str, Any]
    rows: list[dict[str, Any]]
    splits: Sequence[str]


class Tracker:
    """Shows a run elsewhere; metrics.jsonl and summary.json are the record.

    The arguments of a subclass are the keys of ``tracker``, which its yaml in ``conf/tracker/``
    sets. ``start``, ``log`` for each further row and ``finish`` are called in this order, in a
    thread each. One that raises or exceeds its seconds is reported in one warning, no other is
    called afterwards, and the run continues.
    """

    active = True
    """False: no method is called."""
    start_seconds = log_seconds = finish_seconds = 60.0
    """The limits on each call of a method."""

    def start(self, run: TrackedRun) -> None:
        """Begin a run, or continue one: ``run.rows`` are not passed to ``log``."""

    def log(self, row: dict[str, Any]) -> None:
        """Log the next row of metrics.jsonl; ``step`` is one of its keys."""

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        """End the run; ``summary`` is the content of summary.json, None if it is not finished."""

    def remedy(self) -> str:
        """Return what the user can do after an error of one of these methods."""
        return "tracker=none does without it"

    def abort(self) -> None:
        """Release what is left after an error, within a few seconds."""


class NoTracker(Tracker):
    """No tracker: the run folder is the only record."""

    active = False
