"""What an evaluation measures: run x encoding x split x length, checked before any work."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_lab.common.errors import UsageError
from pe_lab.config.schema import Config, plain
from pe_lab.evaluation.record import TRAINED, Measurement
from pe_lab.evaluation.swap_encoding import EncodingConfigs, EncodingSpec
from pe_lab.evaluation.targets import Target, targets
from pe_lab.evaluation.transfer import (
    MissingWeights,
    Transferred,
    missing_weights_message,
    plan_at_length,
    transfer,
)
from pe_lab.experiment.load_run import LoadedRun
from pe_lab.models.base import Model
from pe_lab.store.run_id import any_seed, identity
from pe_lab.training.plan import Plan


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
