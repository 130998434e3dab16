"""One run and its tracker, whose failures do not harm the run.

``tracker.json`` in the run folder says whether the tracker has the whole run. A process killed
between summary.json and the tracker's end leaves it incomplete: the next start of the same command
finds the finished run, and sends the tracker what it lacks.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from pe_lab.config.schema import plain
from pe_lab.core.config_dir import refuse_foreign
from pe_lab.core.console import console, logger
from pe_lab.core.errors import HeldError, PeLabError, RunError, reason
from pe_lab.core.instantiate import instantiate
from pe_lab.core.tracker import TrackedRun, Tracker, call_with_timeout
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.schema import Tracked
from pe_lab.train.plan import Plan

STATE = "tracker.json"
NONE: Mapping[str, float | str] = MappingProxyType({})
LOCK_TIMEOUT_S = 60.0
ABORT_SECONDS = 5.0
"""Limit on stopping a tracker after a failure."""


class Tracking:
    """Passes a run to its tracker; the first failure is one warning and ends it.

    Args:
        section: the key ``tracker`` of the configuration.
        later: numbers that were measured once the run was finished, shown with those of its end.
    """

    def __init__(
        self, section: dict[str, Any], run: TrackedRun, later: Mapping[str, float | str] = NONE
    ) -> None:
        self._folder = RunFolder(run.folder)
        self._later = dict(later)
        self._state = {
            "tracker": section["_target_"],
            "sweep": run.sweep,
            "overrides": list(run.overrides),
            **({"later": self._later} if later else {}),
        }
        self._tracker: Tracker | None = instantiate(section, "tracker", Tracker)
        if not self._tracker.active:
            self._tracker = None
            return
        self._record(complete=False)
        self._bounded("did not start", "start", run)

    def log(self, row: dict[str, Any]) -> None:
        self._bounded("stopped", "log", row)

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        """End the run; ``summary`` is that of a finished one."""
        if summary is not None:
            summary = {**summary, "metrics": {**summary["metrics"], **self._later}}
        self._bounded("did not end well", "finish", summary, exit_code)
        if self._tracker is not None and summary is not None:
            self._record(complete=True)
        self._tracker = None

    def _record(self, *, complete: bool) -> None:
        # A disk that refuses this is reported where the run itself writes to it.
        with suppress(RunError):
            self._folder.write_json(STATE, {**self._state, "complete": complete})

    def _bounded(self, failure: str, method: str, *arguments: Any) -> None:
        """Call a method of the tracker, if it has not failed yet, within its seconds."""
        if (tracker := self._tracker) is None:
            return
        call = partial(getattr(tracker, method), *arguments)
        _, error = call_with_timeout(call, getattr(tracker, f"{method}_seconds"))
        if error is None:
            return
        self._tracker = None
        remedy = "the same command sends it again" if self._later else tracker.remedy(error)
        logger.warning(
            "%s %s: %s; the run folder has every number; %s",
            tracker.name, failure, reason(error), remedy,
        )  # fmt: skip
        call_with_timeout(tracker.abort, ABORT_SECONDS)


def tracked_run(
    plan: Plan, folder: RunFolder, overrides: list[str], sweep: str | None
) -> TrackedRun:
    return TrackedRun(
        folder.path.absolute(),
        folder.run_id,
        plain(plan.resolved),
        overrides,
        sweep,
        dict((folder.starts() or [{}])[-1]),
        folder.rows(),
        plan.task.evaluated(),
    )


def track_rest(plan: Plan, folder: RunFolder) -> None:
    """Send the tracker of a finished run what it lacks, if the process before ended too early."""
    section = plan.config.tracker

    def lacking() -> Tracked | None:
        """The state of a tracker that has a part of the run only."""
        with suppress(PeLabError):
            state = folder.tracked()
            if state and not state["complete"] and state["tracker"] == section["_target_"]:
                return state
        return None

    if lacking() is None or not instantiate(section, "tracker", Tracker).active:
        return
    with suppress(HeldError), folder.lock():
        try:
            state, summary = lacking(), folder.summary()
            if state is None or summary is None:
                return
            run = tracked_run(plan, folder, state["overrides"], state["sweep"])
        except PeLabError as error:
            _say(f"{error}; until then the tracker gets nothing of it")
            return
        _say(f"sending the tracker what it lacks of {folder.path}")
        Tracking(section, run, _later(state)).finish(summary, 0)


def track_later(folder: RunFolder, numbers: Mapping[str, float | str]) -> None:
    """Send the tracker of a finished run numbers that were measured since, unless it has them. What
    fails is one warning, and the same call sends them again."""
    try:
        state = folder.tracked()
        if state is None or (state["complete"] and numbers.items() <= _later(state).items()):
            return
        with folder.lock(LOCK_TIMEOUT_S):
            state, summary = folder.tracked(), folder.summary()
            if state is None or summary is None:
                return
            section = summary["config"]["tracker"]
            refuse_foreign(section, folder.path)
            run = TrackedRun(
                folder.path.absolute(), folder.run_id,
                {**summary["config"], "names": summary["names"]}, state["overrides"],
                state["sweep"], dict((folder.starts() or [{}])[-1]), folder.rows(),
                list(summary["splits"]),
            )  # fmt: skip
            Tracking(section, run, {**_later(state), **numbers}).finish(summary, 0)
    except PeLabError as error:
        logger.warning("the tracker of %s gets nothing new: %s", folder.path, error)


def _later(state: Tracked) -> Mapping[str, float | str]:
    return state.get("later", NONE)


def _say(text: str) -> None:
    # A sweep's parent has no handler for log records.
    console().print(text, soft_wrap=True)
