"""No tracker: metrics.jsonl and summary.json only."""

from typing import Any

from pe_lab.core.tracker import TrackedRun, Tracker


class NoTracker(Tracker):
    """No tracker: the run folder is the only record."""

    active = False

    def start(self, run: TrackedRun) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        pass

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        pass
