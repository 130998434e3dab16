"""What is known of a suite's runs: from their folders, and from the file that is shipped."""

from collections.abc import Mapping
from typing import Any

from pe_lab.common.errors import PeLabError
from pe_lab.common.metrics import IN_DOMAIN, metric_name
from pe_lab.results.suite import Suite
from pe_lab.results.tuning import FAILED, Measured
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
        """Error and loss in domain; None: the run is not over."""
        summary = self.summary(run)
        if summary is not None:
            metrics = summary["metrics"]
            return _pair(*(metrics[metric_name(IN_DOMAIN, key)] for key in ("error", "loss")))
        if run.run_id in self._shipped:
            return self._shipped[run.run_id]
        return FAILED if run.job(0).status().get("state") == "failed" else None


def _shipped(suite: Suite) -> Mapping[str, Measured]:
    from pe_lab.results.leaderboard.file import read, shipped

    path = shipped(suite.name)
    if not path.exists():
        return {}
    rows, _ = read(path)
    rows = rows.filter(split=IN_DOMAIN, suite=suite.version)
    found = rows.select("run_id", "error", "loss").iter_rows()
    return {run_id: _pair(error, loss) for run_id, error, loss in found}


def _pair(error: float | None, loss: float | None) -> Measured:
    """With what a run that failed, or whose loss is not finite, counts as."""
    return FAILED[0] if error is None else error, FAILED[1] if loss is None else loss
