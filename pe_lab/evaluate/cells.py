"""What an evaluation measures: run x encoding x split x length, checked before any work."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pe_lab.config.schema import Config, to_dict
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.core.suggest import did_you_mean
from pe_lab.core.task import Batch, Task
from pe_lab.evaluate.record import TRAINED, Measurement
from pe_lab.evaluate.swap_encoding import (
    EncodingConfigs,
    EncodingSpec,
    MissingWeights,
    missing_weights_message,
    plan_at_length,
    transfer,
)
from pe_lab.experiment.load_run import LoadedRun
from pe_lab.models.base import Model
from pe_lab.store.run_id import any_seed, identity
from pe_lab.train.batches import evaluation_set
from pe_lab.train.memory import min_bytes, refuse_beyond
from pe_lab.train.plan import Plan


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
    return target.task.sample(generator(0, "evaluation", target.split), target.sequences)


@dataclass(frozen=True)
class Cell:
    """A target of one run with one encoding.

    Args:
        trained: the configuration of the run.
        plan: of the run, with the encoding replaced; its seed is that of any run of the setting.
        left_out: the number of trained parameters that the encoding does not read.
        message: why it is not applicable; None if it is.
    """

    path: Path
    trained: Config
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

    Runs that differ in the seed alone have the same cells.

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
        config = run.plan.config
        setting = identity(any_seed(run.summary["config"]), run.plan.task.contents())
        if setting not in by_setting:
            if generate and not run.plan.task.generates:
                raise UsageError(
                    f"generate=true is not allowed with {run.path}: the answers of its task are "
                    "not one run at the end of the sequence; leave generate out"
                )
            wanted = targets(run, splits, lengths, sequences)
            swapped = ((spec.text, configs.swap(config, spec, k)) for spec in encodings)
            by_setting[setting] = [
                _cell(run, setting, encoding, swap, target, configs, generate)
                for encoding, swap in ((TRAINED, config), *swapped)
                for target in wanted
            ]
        found += [replace(cell, path=run.path, trained=config) for cell in by_setting[setting]]
    return found


def _cell(
    run: LoadedRun,
    setting: str,
    encoding: str,
    config: Config,
    target: Target,
    configs: EncodingConfigs,
    generate: bool,
) -> Cell:
    plan = run.plan if encoding == TRAINED else _plan(run, config, target)
    try:
        model = transfer(run.model, plan)
    except MissingWeights as error:
        raise UsageError(
            missing_weights_message(
                encoding, str(run.path), run.model, run.plan, error.names, configs
            )
        ) from None
    if generate and model.whole_sequence:
        raise UsageError(
            f"generate=true is not allowed with pe={encoding}, which "
            "reads the length of the whole sequence, not known while it is written: leave one "
            "out"
        )
    message = None
    if target.positions is None:
        message = target.message
    elif model.max_positions is not None and target.positions > model.max_positions:
        message = f"it encodes {model.max_positions} positions, {target.positions} are needed"
    measurement = Measurement(
        encoding == TRAINED,
        to_dict(plan.config)["pe"],
        plan.dims.max_len,
        target.split,
        target.tokens,
        target.sequences,
        generate,
    )
    return Cell(
        run.path, run.plan.config, setting, encoding, target, plan, measurement, model.scale,
        model.left_out, message,
    )  # fmt: skip


def _plan(run: LoadedRun, config: Config, target: Target) -> Plan:
    """The plan for a target. An encoding whose parameters depend on the length, such as a table of
    positions, is built for the length of training."""
    tokens = target.tokens
    at_length = plan_at_length(run.plan, config, target.positions or tokens, tokens)
    try:
        transfer(run.model, at_length)
    except MissingWeights:
        # In a combination, another part may depend on the test length on purpose.
        return at_length if "parts" in config.pe else replace(run.plan, config=config)
    return at_length
