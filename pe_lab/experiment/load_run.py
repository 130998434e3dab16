"""Load the model of a finished run, and begin another run with its weights (``train.from``)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import equal, nn
from torch.random import fork_rng

from pe_lab.config.schema import check
from pe_lab.core.console import logger
from pe_lab.core.errors import UsageError, check_known, reason
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.core.task import Batch
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.positions import Numbers
from pe_lab.store import checkpoint
from pe_lab.store.run_folder import RunFolder
from pe_lab.train.batches import evaluation_set
from pe_lab.train.measure import Answers, Evaluator, fixed_positions
from pe_lab.train.plan import Plan, make_plan, replace_keys


@dataclass(frozen=True)
class LoadedRun:
    """A finished run: its summary, its plan, and the model with its weights."""

    path: Path
    summary: dict[str, Any]
    plan: Plan
    model: Model

    def sequences(self, split: str) -> tuple[Batch, Numbers]:
        """Return the sequences of a split that the run was measured on, and their positions.

        Raises:
            UsageError: no such split, or one too long for the encoding.
        """
        check_known(f"{self.path} was not measured on split={{}}", [split], self.plan.splits)
        n = self.plan.sequences(split, self.plan.config.eval.sequences)
        data = evaluation_set(self.plan.task, split, n)
        return data, fixed_positions(self.plan.positions, split, data)

    def worst_split(self) -> str:
        """Return the split with the highest error that the run measured; in_domain where it has no
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
        """Return the model's answers to all sequences of a split, from which its summary was
        made."""
        return Evaluator(self.plan, self.model, {split: self.sequences(split)[0]}).answers(split)


def load(path: str | Path) -> LoadedRun:
    """Return the model of a finished run's folder with its weights, on the CPU, in evaluation mode.

    Raises:
        UsageError: the folder is missing, is not that of a run, or its run is not finished or
            cannot be rebuilt by this version of the program or on this machine.
        DamagedError: a file of it is damaged.
    """
    folder = RunFolder(Path(path))
    summary = read_summary(folder)
    planned = rebuild_plan(folder, summary)
    digest = summary["digests"].get("checkpoint.pt")
    if digest is None:
        raise UsageError(f"{path} kept no weights: make it with keep_checkpoint=true force=true")
    state = checkpoint.load(folder.checkpoint, digest)
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
    """Return the plan of a finished run, by what its summary records, on the CPU and without a
    tracker.

    Raises:
        UsageError: it cannot be built by this version of the program or on this machine.
    """
    # Keys that were null are null again, as some have another value at another length.
    config = replace_keys(summary["config"], dict.fromkeys(summary.get("null_keys", [])))
    config |= {"device": "cpu", "tracker": {"_target_": "pe_lab.core.tracker.NoTracker"}}
    try:
        planned = make_plan(check(config, summary.get("names", {})))
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


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Return the run's result; UsageError if there is none."""
    summary = folder.summary()
    if summary is not None:
        return summary
    raise UsageError(
        f"{folder.path} is not a finished run ({folder.state('no run')}): give one of "
        "pe-lab runs, or run its command again to continue it"
    )


def check_origin(plan: Plan) -> Plan:
    """Return the plan, if its model can begin with the weights of ``train.from``.

    Raises:
        UsageError: that run cannot be loaded, or its model has another shape.
    """
    if plan.origin is not None:
        load_origin(plan.model(), plan)
    return plan


def load_origin(model: Model, plan: Plan) -> list[dict[str, str]]:
    """Load the weights of ``train.from`` into a new model.

    An encoding's parameters are loaded where that run has the same class of encoding there. All
    other weights of that run must fit.

    Returns:
        The lineage: runs and the digests of their checkpoints, the oldest first; empty without
        ``train.from``.
    """
    if plan.origin is None:
        return []
    with fork_rng():
        source = load(plan.origin)
    ours, weights = model.state_dict(), source.model.state_dict()
    classes, source_classes = encoding_classes(model), encoding_classes(source.model)
    for name, encoding in source_classes.items():
        if encoding is not classes.get(name) or ours[name].shape != weights[name].shape:
            del weights[name]
    for name, tensor in weights.items():
        here = tuple(ours[name].shape) if name in ours else "missing"
        if here != tuple(tensor.shape):
            raise UsageError(
                f"train.from={plan.origin}: {name} is {tuple(tensor.shape)} there and {here} here: "
                "give the same model, and a task with as many tokens in its vocabulary"
            )
    model.load_state_dict(weights, strict=False)
    loaded = model.state_dict()
    # Two tensors there may be one here: the last one would silently be both.
    if lost := [name for name in weights if not equal(loaded[name].cpu(), weights[name])]:
        raise UsageError(f"train.from={plan.origin}: this model has no place for {', '.join(lost)}")
    new = sorted(loaded.keys() - weights.keys())
    run = str(plan.config.train.from_run)
    logger.info("begins with %d of %d tensors of %s%s", len(weights), len(loaded),
                run.partition("@")[0], f"; new: {', '.join(new)}" if new else "")  # fmt: skip
    digest = source.summary["digests"].get("checkpoint.pt", "")
    return [*source.summary.get("lineage", []), {"run": run, "checkpoint": digest}]


def encoding_classes(model: nn.Module) -> dict[str, type]:
    """Return the names of the tensors that belong to encodings, with the class of each encoding; of
    one within another, the inner one."""
    classes: dict[str, type] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, PositionalEncoding):
            classes |= {f"{path}.{name}": type(module) for name in module.state_dict()}
    return classes
