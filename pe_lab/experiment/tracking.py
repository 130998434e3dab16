"""One run and its tracker, whose failures never harm the run; and what trackers show of a run."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pe_lab.core.console import logger
from pe_lab.core.errors import reason
from pe_lab.core.metrics import CURVES, MEAN_OOD, TABLED, mean_ood
from pe_lab.core.tracker import TrackedRun, Tracker
from pe_lab.core.validation import instantiate

ABORT_SECONDS = 5.0
"""Limit on stopping a tracker after a failure."""
LENGTH_COLUMNS = ("split", "length", "error", "n")


def call_with_timeout(
    function: Callable[..., Any], seconds: float, *arguments: Any
) -> tuple[Any, BaseException | None]:
    """Call ``function`` in a daemon thread; return its result and the exception it raised.

    After ``seconds`` the exception is a TimeoutError and the thread is abandoned.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    def call() -> None:
        try:
            outcome.append((function(*arguments), None))
        # wandb calls sys.exit when its service process fails. Signals are delivered to the main
        # thread, which waits below, so a KeyboardInterrupt is never caught here.
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else (None, TimeoutError(f"no answer within {seconds:g} s"))


class Tracking:
    """Passes a run to its tracker; the first failure is one warning and ends the tracking.

    Args:
        section: the key ``tracker`` of the configuration.
    """

    def __init__(self, section: dict[str, Any], run: TrackedRun) -> None:
        tracker = instantiate(section, "tracker", Tracker)
        self._tracker = tracker if tracker.active else None
        self._call("start", run)

    def log(self, row: dict[str, Any]) -> None:
        self._call("log", row)

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        """End the run; ``summary`` is that of a finished one."""
        self._call("finish", summary, exit_code)
        self._tracker = None

    def _call(self, method: str, *arguments: Any) -> None:
        """Call a method of the tracker within its seconds, if no call has failed yet."""
        if (tracker := self._tracker) is None:
            return
        seconds = getattr(tracker, f"{method}_seconds")
        _, error = call_with_timeout(getattr(tracker, method), seconds, *arguments)
        if error is not None:
            self._tracker = None
            logger.warning(
                "%s failed to %s: %s; the run folder has every number; %s",
                type(tracker).__name__, method, reason(error), tracker.remedy(),
            )  # fmt: skip
            call_with_timeout(tracker.abort, ABORT_SECONDS)


def add_mean_ood(row: dict[str, Any], splits: Iterable[str]) -> dict[str, Any]:
    """Return a row of metrics.jsonl, and its mean out-of-domain error if it has one over all
    splits."""
    mean = mean_ood(row, splits)
    return row if mean is None else row | {MEAN_OOD: mean}


def closing_row(summary: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the last point of a finished run's curves, and all numbers for the runs table."""
    metrics = {k: v for k, v in summary["metrics"].items() if v is not None}
    numbers = add_mean_ood(metrics, summary["splits"])
    row = {k: v for k, v in numbers.items() if k.rpartition("/")[2] in CURVES}
    return {"step": summary["steps"], **row}, numbers


def closing_tables(summary: dict[str, Any]) -> dict[str, tuple[Sequence[str], list[list[Any]]]]:
    """Return the tables of a finished run, name -> columns and rows.

    The cells of a split that does not apply are None. ``lengths`` has the error by the number of
    tokens read; a range is named by its upper end.
    """
    metrics = summary["metrics"]
    splits = [
        [split, *(metrics.get(f"{prefix}/{kind}") for kind in TABLED)]
        for split, prefix in summary["splits"].items()
    ]
    lengths = [
        [split, int(bucket.rpartition("-")[2]), cell["error"], cell["n"]]
        for split, kinds in summary["by"].items()
        for bucket, cell in kinds["length"].items()
    ]
    return {
        "splits": (("split", *TABLED), splits),
        "lengths": (LENGTH_COLUMNS, lengths),
    }
