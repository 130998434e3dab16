"""What is known of a suite's runs: from their folders, and from the file that is shipped."""

from collections.abc import Mapping
from typing import Any

from pe_lab.common.errors import PeLabError
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.results.leaderboard.file import shipped_rows
from pe_lab.results.leaderboard.scores import FAILED, Measured, precedence
from pe_lab.results.suite import Suite
from pe_lab.sweeps.suite.runs import SuiteRun


class Known:
    """Runs that are over.

    Args:
        shipped: whether runs of the shipped file count.
    """

    def __init__(self, suite: Suite, shipped: bool) -> None:
        self._shipped = _shipped(suite) if shipped else {}
        self.damaged: dict[str, str] = {}
        """Runs whose results cannot be read, and why."""

    def is_shipped(self, run: SuiteRun) -> bool:
        """Whether the package has the result of this run."""
        return run.run_id in self._shipped

    def summary(self, run: SuiteRun) -> dict[str, Any] | None:
        """Of a run that is finished here; a damaged one is noted in ``damaged``."""
        try:
            return run.folder.summary()
        except PeLabError as error:
            self.damaged[str(run)] = str(error)
            return None

    def measured(self, run: SuiteRun) -> Measured | None:
        """Error and loss in domain, of the result that counts (``precedence``); None: the run is
        not over."""
        found = dict(self._shipped.get(run.run_id, {}))
        summary = self.summary(run)
        if summary is not None:
            metrics = summary["metrics"]
            pair = _pair(*(metrics[metric_name(IN_DOMAIN, key)] for key in ("error", "loss")))
            found[precedence(True, False)] = pair
        else:
            status = run.job(0).status()
            if status.get("state") == "failed" and not status.get("by_machine"):
                found[precedence(False, False)] = FAILED
        return found[min(found)] if found else None


def _shipped(suite: Suite) -> Mapping[str, Mapping[int, Measured]]:
    """Of each shipped run its results by ``precedence``."""
    rows, _ = shipped_rows(suite)
    found: dict[str, dict[int, Measured]] = {}
    rows = rows.filter(split=IN_DOMAIN)
    for run_id, state, error, loss in rows.select("run_id", "state", "error", "loss").iter_rows():
        place = precedence(state == "finished", True)
        found.setdefault(run_id, {}).setdefault(place, _pair(error, loss))
    return found


def _pair(error: float | None, loss: float | None) -> Measured:
    """With what a run that failed, or whose loss is not finite, counts as."""
    return FAILED[0] if error is None else error, FAILED[1] if loss is None else loss
