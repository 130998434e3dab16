"""Load the model of a finished run."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pe_lab.config.schema import check
from pe_lab.core.errors import UsageError, reason
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.core.suggest import did_you_mean
from pe_lab.core.task import Batch
from pe_lab.models.base import Model
from pe_lab.pe.positions import Numbers
from pe_lab.store import checkpoint
from pe_lab.store.run_folder import RunFolder
from pe_lab.train.batches import evaluation_set
from pe_lab.train.measure import Answers, Evaluator, fixed_positions
from pe_lab.train.plan import Plan, plan, replace_keys


@dataclass(frozen=True)
class LoadedRun:
    """A finished run: its summary, its plan, and the model with its weights."""

    path: Path
    summary: dict[str, Any]
    plan: Plan
    model: Model

    def sequences(self, split: str) -> tuple[Batch, Numbers]:
        """The sequences of a split that the run was measured on, and their positions.

        Raises:
            UsageError: no such split, or one too long for the encoding.
        """
        if split in self.plan.too_long:
            raise UsageError(
                f"split={split} needs {self.plan.too_long[split]} positions, more than "
                f"{self.path} can encode: choose from {', '.join(self.plan.splits)}"
            )
        if split not in self.plan.splits:
            raise UsageError(
                f"split={split} is not a split of {self.path}: "
                + did_you_mean(split, self.plan.splits)
            )
        n = self.plan.sequences(split, self.plan.config.eval.sequences)
        data = evaluation_set(self.plan.task, split, n)
        return data, fixed_positions(self.plan.positions, split, data)

    def worst_split(self) -> str:
        """The split with the highest error that the run measured; in_domain where it has no
        other."""
        measured = self.summary["metrics"]
        errors = {
            split: error
            for split in self.plan.splits
            if split != IN_DOMAIN
            and (error := measured.get(metric_name(split, "error"))) is not None
        }
        return max(errors, key=lambda split: errors[split], default=IN_DOMAIN)

    def answers(self, split: str) -> Answers:
        """The model's answers to all sequences of a split, from which its summary was made."""
        data, _ = self.sequences(split)
        return Evaluator(self.plan, self.model, {split: data}).answers(split)

    @property
    def autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        """Makes the autocast context of training, on the model's current device."""
        return partial(self.model.autocast, self.plan.config.train.precision)


def load(path: str | Path) -> LoadedRun:
    """The model of a finished run's folder with its weights, on the CPU, in evaluation mode.

    Raises:
        UsageError: the folder is missing, is not that of a run, or its run is not finished or
            cannot be rebuilt by this version of the program or on this machine.
        DamagedError: a file of it is damaged.
    """
    folder = RunFolder(Path(path))
    summary = summary_of(folder)
    planned = rebuild_plan(folder, summary)
    digest = summary["digests"].get("checkpoint.pt")
    state = checkpoint.load(folder.checkpoint, summary["identity"], digest)
    model = planned.model()
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise UsageError(
            f"the weights in {folder.checkpoint} do not fit the model of this version of the "
            f"program ({reason(error)}): use the version in {path}/environment.json, or make "
            "the run again with force=true"
        ) from None
    return LoadedRun(folder.path, summary, planned, model.eval())


def rebuild_plan(folder: RunFolder, summary: dict[str, Any]) -> Plan:
    """The plan of a finished run, by what its summary records, on the CPU and without a tracker.

    Raises:
        UsageError: it cannot be built by this version of the program or on this machine.
    """
    # Keys that were null are null again, as some have another value at another length.
    config = replace_keys(summary["config"], dict.fromkeys(summary.get("null_keys", [])))
    config |= {"device": "cpu", "tracker": {"_target_": "pe_lab.core.tracker.NoTracker"}}
    try:
        planned = plan(check(config, summary.get("names", {})))
    except UsageError as error:
        raise UsageError(
            f"{folder.path} cannot be built again by this version of the program "
            f"(environment.json has the one that made it): {error}"
        ) from None
    before, now = summary.get("contents", {}), planned.task.contents()
    if now != before:
        differ = sorted(name for name in now.keys() | before if now.get(name) != before.get(name))
        raise UsageError(
            f"{folder.path} was made with other contents of {', '.join(differ)}: put the files "
            "that its task reads back as they were"
        )
    return planned


def summary_of(folder: RunFolder) -> dict[str, Any]:
    """The run's result; UsageError if there is none."""
    summary = folder.summary()
    if summary is not None:
        return summary
    status = folder.status()
    state = "killed" if folder.killed() else status.get("state", "no run")
    raise UsageError(
        f"{folder.path} is not a finished run ({state}): give one of pe-lab runs, or run its "
        "command again to continue it"
    )
