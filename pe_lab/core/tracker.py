"""The base of trackers, which show a run elsewhere while it is made, and what they show of it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_lab.core.metrics import CURVES, MEAN_OOD, METRICS, TABLED, mean_ood


def call_with_timeout(
    function: Callable[[], Any], seconds: float
) -> tuple[Any, BaseException | None]:
    """Run ``function`` in a daemon thread; return its result and the exception it raised.

    After ``seconds`` the exception is a TimeoutError and the thread is abandoned.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((function(), None))
        # wandb calls sys.exit when its service process fails. Signals are delivered to the main
        # thread, which waits below, so a KeyboardInterrupt is never caught here.
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="call_with_timeout", daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else (None, TimeoutError(f"no answer within {seconds:g} s"))


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker may need to know of a run.

    Args:
        folder: the run folder, absolute.
        run_id: unique within a runs_dir.
        config: the resolved configuration; ``names`` in it holds the chosen option of each group.
        overrides: of the command line.
        sweep: the name of the run's sweep; None: a run by itself.
        environment: versions, git revision and machine, as in environment.json.
        rows: the rows of metrics.jsonl so far.
        splits: all splits, with those that are too long for the encoding.
    """

    folder: Path
    run_id: str
    config: dict[str, Any]
    overrides: Sequence[str]
    sweep: str | None
    environment: dict[str, Any]
    rows: list[dict[str, Any]]
    splits: Sequence[str]


class Tracker(ABC):
    """Shows a run elsewhere; metrics.jsonl and summary.json are the record.

    The arguments of a subclass are the keys of ``tracker``, which its yaml in ``conf/tracker/``
    sets. ``start``, ``log`` for each further row and ``finish`` are called in this order, in a
    thread each. One that raises or exceeds its seconds is reported in one warning, no other is
    called afterwards, and the run continues.
    """

    active: bool = True
    """False: there is nothing to do, and no method is called."""

    start_seconds = log_seconds = finish_seconds = 60.0
    """The limits on each call of a method."""

    @property
    def name(self) -> str:
        """The tracker's name in messages."""
        return type(self).__name__

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Begin a run, or continue one: ``run.rows`` are not passed to ``log``."""

    @abstractmethod
    def log(self, row: dict[str, Any]) -> None:
        """Log the next row of metrics.jsonl; ``step`` is one of its keys."""

    @abstractmethod
    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        """End the run; ``summary`` is the content of summary.json, None if it is not finished."""

    def remedy(self, error: BaseException) -> str:
        """What the user can do about an error of one of these methods."""
        return "tracker=none does without it"

    def abort(self) -> None:
        """Release what is left after an error, within a few seconds."""
        return


class NoTracker(Tracker):
    """No tracker: the run folder is the only record."""

    active = False

    def start(self, run: TrackedRun) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        pass

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        pass


UNCHARTED = tuple(f"/{metric.name}" for metric in METRICS if not metric.charted)
"""Suffixes of metrics that are logged without a chart."""

SPLIT_COLUMNS = ("split", *TABLED)
LENGTH_COLUMNS = ("split", "length", "error", "n")


def with_mean_ood(row: dict[str, Any], splits: Iterable[str]) -> dict[str, Any]:
    """A row of metrics.jsonl, and its mean out-of-domain error if it has one over all splits."""
    mean = mean_ood(row, splits)
    return row if mean is None else row | {MEAN_OOD: mean}


def closing_row(summary: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last point of a finished run's curves, and all numbers for the runs table."""
    metrics = {k: v for k, v in summary["metrics"].items() if v is not None}
    numbers = with_mean_ood(metrics, summary["splits"])
    row = {k: v for k, v in numbers.items() if k.rpartition("/")[2] in CURVES}
    return {"step": summary["steps"], **row}, numbers


def split_rows(summary: dict[str, Any]) -> list[list[Any]]:
    """The table ``splits``; the cells of a split that does not apply are None."""
    metrics = summary["metrics"]
    return [
        [split, *(metrics.get(f"{prefix}/{kind}") for kind in SPLIT_COLUMNS[1:])]
        for split, prefix in summary["splits"].items()
    ]


def length_rows(summary: dict[str, Any]) -> list[list[Any]]:
    """The table ``lengths``: error by the number of tokens read; a range is named by its upper
    end."""
    return [
        [split, int(bucket.rpartition("-")[2]), cell["error"], cell["n"]]
        for split, kinds in summary["by"].items()
        for bucket, cell in kinds["length"].items()
    ]
