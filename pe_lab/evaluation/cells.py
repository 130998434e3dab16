"""What an evaluation measures: run x encoding x split x length, checked before any work."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean
from pe_lab.config.schema import Config, plain
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Task
from pe_lab.evaluation.record import TRAINED, Measurement
from pe_lab.evaluation.swap_encoding import (
    EncodingConfigs,
    EncodingSpec,
    MissingWeights,
    Transferred,
    missing_weights_message,
    plan_at_length,
    transfer,
)
from pe_lab.experiment.load_run import LoadedRun
from pe_lab.models.base import Model
from pe_lab.store.run_id import any_seed, identity
from pe_lab.training.batches import evaluation_set
from pe_lab.training.memory import min_bytes, refuse_beyond
from pe_lab.training.plan import Plan


@dataclass(frozen=True)
class Target:
    """A split at a length.

    Args:
        length: the requested length, or the configured one.
        task: the split's task at that length; its sequences have ``tokens``.
        unchanged: whether this is the split's configured length.
        sequences: how many are read.
        positions: one more than the largest position; None if they are out of range, see
            ``message``.
    """

    split: str
    length: int
    task: Task
    unchanged: bool
    sequences: int
    positions: int | None
    message: str = ""

    @property
    def tokens(self) -> int:
        return self.task.n_tokens


def targets(
    run: LoadedRun, splits: Sequence[str], lengths: Sequence[int] | None, sequences: int | None
) -> list[Target]:
    """Each split at each length, or at its configured one.

    Args:
        sequences: how many of the training length; None: the run's eval.sequences.

    Raises:
        UsageError: unknown split, impossible length, or more than the machine can hold.
    """
    return [
        _target(run, split, length, sequences)
        for split in splits
        for length in lengths or [_split_task(run, split).n_tokens]
    ]


def _split_task(run: LoadedRun, split: str) -> Task:
    splits = run.plan.task.evaluated()
    if split not in splits:
        raise UsageError(
            f"splits={split} is not a split of {run.path}: " + did_you_mean(split, splits)
        )
    return run.plan.task.split(split)


def _target(run: LoadedRun, split: str, length: int, sequences: int | None) -> Target:
    plan, task = run.plan, _split_task(run, split)
    configured = task.n_tokens
    try:
        at_length = task if length == configured else task.at_length(length)
    except ValueError as error:
        raise UsageError(f"lengths={length}: {error}") from None
    tokens = at_length.n_tokens
    unchanged = tokens == configured
    if not unchanged and split in plan.task.contents() and at_length.stored(split) is None:
        raise UsageError(
            f"lengths={length}: the split {split} of {run.path} is read from a file, "
            f"whose sequences have {configured} tokens: give that length, or another split"
        )
    limit = plan.config.eval.sequences if sequences is None else sequences
    n = max(1, limit * min(tokens, plan.dims.train_len) // tokens)
    refuse_beyond(
        f"lengths={length} is too large",
        min_bytes(tokens, n, plan.dims.d_model),
        "give shorter lengths or fewer sequences",
    )
    target = Target(split, length, task if unchanged else at_length, unchanged, n, None)
    try:
        return replace(target, positions=plan.positions.limit_for(target.task, training=False))
    except ValueError as error:
        return replace(target, message=str(error))


class EvaluationData:
    """The sequences that cells are measured on, each set drawn once."""

    def __init__(self) -> None:
        self.drawn: dict[str, Batch] = {}

    def of(self, plan: Plan, target: Target) -> Batch:
        """The sequences of a target.

        Raises:
            UsageError: none of their positions is scored.
        """
        data = self._set(plan, target)
        if not data.scored.any():
            raise UsageError(
                f"the split {target.split} has nothing to score in its first "
                f"{target.sequences} sequences of {target.tokens} tokens: raise "
                "sequences=, or give other lengths"
            )
        return data

    def reference(self, plan: Plan) -> Batch:
        """In-domain sequences of the run, from which the task computes the error of guessing."""
        n = plan.sequences(IN_DOMAIN, plan.config.eval.sequences)
        task = plan.task.split(IN_DOMAIN)
        return self._set(plan, Target(IN_DOMAIN, task.n_tokens, task, True, n, None))

    def _set(self, plan: Plan, target: Target) -> Batch:
        identity = [plan.config.task, target.split, target.tokens, target.sequences]
        key = json.dumps(identity, sort_keys=True)
        if key not in self.drawn:
            self.drawn[key] = _draw(plan, target)
        return self.drawn[key]


def _draw(plan: Plan, target: Target) -> Batch:
    if target.unchanged:
        return evaluation_set(plan.task, target.split, target.sequences)
    stored = target.task.stored(target.split)
    if stored is not None:
        return stored.take(np.arange(min(target.sequences, len(stored))))
    rng = generator(0, "evaluation", target.split)
    return target.task.sample(rng, target.sequences)


@dataclass(frozen=True)
class Cell:
    """A target of one run with one encoding.

    Args:
        plan: of the run, with the encoding replaced; its seed is that of any run of the setting.
        left_out: the number of trained parameters that the encoding does not read.
        message: why it is not applicable; None if it is.
    """

    path: Path
    task_name: str
    pe: str
    seed: int
    setting: str
    encoding: str
    target: Target
    plan: Plan
    measurement: Measurement
    scale: float | None
    left_out: int
    message: str | None

    def model(self, run: LoadedRun) -> Model:
        """The cell's model with the weights of the run."""
        return transfer(run.model, self.plan).model


def cells(
    runs: Iterable[LoadedRun],
    encodings: Sequence[EncodingSpec],
    splits: Sequence[str],
    lengths: Sequence[int] | None,
    *,
    configs: EncodingConfigs,
    k: float | None = None,
    sequences: int | None = None,
    generate: bool = False,
) -> list[Cell]:
    """Every cell, by run, encoding (the trained one first), split and length.

    Raises:
        UsageError: a run cannot be evaluated in this way.
    """
    if k is not None and not configs.any_takes_scale(encodings):
        raise UsageError(
            f"k={k:g} has no effect, none of the encodings takes it: leave it out, or give pe= one "
            "that has a scale (pi, ntk_old, yarn, ..)"
        )
    found: list[Cell] = []
    by_setting: dict[str, list[Cell]] = {}
    for run in runs:
        setting = identity(any_seed(run.summary["config"]), run.plan.task.contents())
        if setting not in by_setting:
            by_setting[setting] = _SettingCells(run, setting, configs, k, generate).cells(
                encodings, targets(run, splits, lengths, sequences)
            )
        seed = run.plan.config.seed
        found += [replace(cell, path=run.path, seed=seed) for cell in by_setting[setting]]
    return found


class _SettingCells:
    """The cells of a run, and of all others that differ from it in the seed only."""

    def __init__(
        self,
        run: LoadedRun,
        setting: str,
        configs: EncodingConfigs,
        k: float | None,
        generate: bool,
    ) -> None:
        self.run, self.setting, self.configs = run, setting, configs
        self.k, self.generate = k, generate
        if generate and not run.plan.task.generates:
            raise UsageError(
                f"generate=true is not allowed with {run.path}: the answers of its task are "
                "not one run at the end of the sequence; leave generate out"
            )

    def cells(self, encodings: Sequence[EncodingSpec], targets: Sequence[Target]) -> list[Cell]:
        """Every encoding on every target."""
        found = [self._cell(TRAINED, self.run.plan, target) for target in targets]
        for spec in encodings:
            config = self.configs.swap(self.run.plan.config, spec, self.k)
            for target in targets:
                found.append(self._cell(spec.text, self._plan(config, target), target))
        return found

    def _plan(self, config: Config, target: Target) -> Plan:
        """The plan for a target. An encoding whose parameters depend on the length, such as a
        table of positions, is built for the length of training."""
        plan = self.run.plan
        tokens = target.tokens
        at_length = plan_at_length(plan, config, target.positions or tokens, tokens)
        try:
            transfer(self.run.model, at_length)
        except MissingWeights:
            # In a combination, another part may depend on the test length on purpose.
            return at_length if "parts" in config.pe else replace(plan, config=config)
        return at_length

    def _cell(self, encoding: str, plan: Plan, target: Target) -> Cell:
        model = self._transferred(encoding, plan)
        if self.generate and model.whole_sequence is not None:
            raise UsageError(
                f"generate=true is not allowed with pe={encoding}, whose {model.whole_sequence} "
                "reads the length of the whole sequence, not known while it is written: leave one "
                "out"
            )
        measurement = Measurement(
            encoding == TRAINED,
            plain(plan.config)["pe"],
            plan.dims.max_len,
            target.split,
            target.tokens,
            target.sequences,
            self.generate,
        )
        names = self.run.plan.config.names
        return Cell(
            self.run.path,
            names["task"],
            names["pe"],
            plan.config.seed,
            self.setting,
            encoding,
            target,
            plan,
            measurement,
            model.scale,
            model.left_out,
            _not_applicable(model, target),
        )

    def _transferred(self, encoding: str, plan: Plan) -> Transferred:
        run = self.run
        try:
            return transfer(run.model, plan)
        except MissingWeights as error:
            raise UsageError(
                missing_weights_message(
                    encoding, str(run.path), run.model, run.plan, error.names, self.configs
                )
            ) from None


def _not_applicable(model: Transferred, target: Target) -> str | None:
    if target.positions is None:
        return target.message
    if model.max_positions is not None and target.positions > model.max_positions:
        return f"it encodes {model.max_positions} positions, {target.positions} are needed"
    return None
