"""What an evaluation measures: run x encoding x split x length, checked before any work."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pe_lab.common.errors import UsageError
from pe_lab.config.schema import Config, plain
from pe_lab.evaluation.memory import needed_bytes, refuse_beyond
from pe_lab.evaluation.placing import Placed, Untrained, at_length, place, refusal
from pe_lab.evaluation.record import TRAINED, Measurement
from pe_lab.evaluation.swap_encoding import Asked, Yamls, scales
from pe_lab.evaluation.targets import Target, targets
from pe_lab.experiment.load_run import Trained, load
from pe_lab.models.base import Model
from pe_lab.store.run_id import identity
from pe_lab.training.plan import Plan


@dataclass(frozen=True)
class Cell:
    """A target of one run with one encoding.

    Args:
        plan: of the run, with the encoding in place; the seed is that of any run of the setting.
        left_out: trained parameters that the encoding does not read.
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

    def model(self, trained: Trained) -> Model:
        """Its model with the weights of the run."""
        return place(trained.model, self.plan).model


def cells(
    paths: Sequence[Path],
    encodings: Sequence[Asked],
    splits: Sequence[str],
    lengths: Sequence[int] | None,
    *,
    yamls: Yamls,
    k: float | None = None,
    sequences: int | None = None,
    generate: bool = False,
) -> list[Cell]:
    """Every cell, by run, encoding (the trained one first), split and length.

    Raises:
        UsageError: a run cannot be evaluated, or not so.
    """
    if k is not None and not scales(yamls, encodings):
        raise UsageError(
            f"k={k:g} has no effect, none of the encodings takes it: leave it out, or give pe= one "
            "that has a scale (pi, ntk_old, yarn, ..)"
        )
    found: list[Cell] = []
    known: dict[str, list[Cell]] = {}
    for path in paths:
        trained = load(path)
        if not os.access(path, os.W_OK):
            raise UsageError(f"{path} cannot be written, and its record is kept there: make it so")
        setting = identity({**trained.summary["config"], "seed": 0}, trained.plan.task.contents())
        if setting not in known:
            known[setting] = _OneSetting(trained, setting, yamls, k, generate).cells(
                encodings, targets(trained, splits, lengths, sequences)
            )
        seed = trained.plan.config.seed
        found += [replace(cell, path=path, seed=seed) for cell in known[setting]]
    return found


class _OneSetting:
    """The cells of a run, and of all others that differ from it in the seed only."""

    def __init__(
        self,
        trained: Trained,
        setting: str,
        yamls: Yamls,
        k: float | None,
        generate: bool,
    ) -> None:
        self.trained, self.setting, self.yamls = trained, setting, yamls
        self.k, self.generate = k, generate
        if generate and not trained.plan.task.generates:
            raise UsageError(
                f"generate=true is not allowed with {trained.path}: the answers of its task are "
                "not one run at the end of the sequence; leave generate out"
            )

    def cells(self, encodings: Sequence[Asked], targets: Sequence[Target]) -> list[Cell]:
        """Every encoding on every target."""
        found = [self._cell(TRAINED, self.trained.plan, target) for target in targets]
        for one in encodings:
            config = self.yamls.in_place(self.trained.plan.config, one, self.k)
            for target in targets:
                found.append(self._cell(one.word, self._fitting(config, target), target))
        return found

    def _fitting(self, config: Config, target: Target) -> Plan:
        """The plan for a target. Where parameters follow the length, as a table of positions does,
        the encoding is made for the length it was trained for."""
        plan = self.trained.plan
        tokens = target.tokens
        made = at_length(plan, config, target.positions or tokens, tokens)
        try:
            place(self.trained.model, made)
        except Untrained:
            # Of several parts, another one may follow the length by intention.
            return made if "parts" in config.pe else replace(plan, config=config)
        return made

    def _cell(self, word: str, plan: Plan, target: Target) -> Cell:
        placed = self._placed(word, plan)
        if self.generate and placed.whole is not None:
            raise UsageError(
                f"generate=true is not allowed with pe={word}, whose {placed.whole} reads the "
                "length of the whole sequence, not known while it is written: leave one out"
            )
        message = self._not_applicable(placed, target)
        measurement = Measurement(
            word == TRAINED,
            plain(plan.config)["pe"],
            plan.dims.max_len,
            target.split,
            target.tokens,
            target.sequences,
            self.generate,
        )
        names = self.trained.plan.config.names
        return Cell(
            self.trained.path,
            names["task"],
            names["pe"],
            plan.config.seed,
            self.setting,
            word,
            target,
            plan,
            measurement,
            placed.scale,
            placed.left_out,
            message,
        )

    def _placed(self, word: str, plan: Plan) -> Placed:
        trained = self.trained
        try:
            return place(trained.model, plan)
        except Untrained as error:
            run = str(trained.path)
            told = refusal(word, run, trained.model, trained.plan, error.names, self.yamls)
            raise UsageError(told) from None

    def _not_applicable(self, placed: Placed, target: Target) -> str | None:
        if target.positions is None:
            return target.message
        if placed.longest is not None and target.positions > placed.longest:
            return f"it encodes {placed.longest} positions, {target.positions} are needed"
        return None


def check_memory(left: Sequence[Cell], gpu: bool) -> None:
    """UsageError for cells that the machine cannot hold, with an estimate."""
    longest: dict[tuple[str, str], Cell] = {}
    for cell in left:
        known = longest.setdefault((cell.setting, cell.encoding), cell)
        if cell.target.tokens > known.target.tokens:
            longest[cell.setting, cell.encoding] = cell
    trained: Trained | None = None
    for cell in longest.values():
        if trained is None or trained.path != cell.path:
            trained = load(cell.path)
        placed, target = place(trained.model, cell.plan), cell.target
        needed = needed_bytes(
            placed.model,
            target.tokens,
            target.sequences,
            cell.plan.config.eval.batch_tokens,
            placed.longest or target.tokens,
            cell.plan.vocabulary.separator,
            trained.autocast,
        )
        device = torch.device("cuda" if gpu else "cpu")
        refuse_beyond(f"lengths={target.length} with pe={cell.encoding}", needed, "about", device)
