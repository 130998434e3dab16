"""What the phases of a suite run: tuning, then the chosen rate on fresh seeds, then what is asked
for beside these."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pe_lab.results.leaderboard.entries import BASELINE, equal_time
from pe_lab.results.suite import CAPACITY, EQUAL_PARAMETERS, EQUAL_TIME, SCORE, TUNING, Suite
from pe_lab.sweeps.suite.runs import Base, Composer, SuiteRun
from pe_lab.training.plan import Plan

EQUAL = 0.01
"""The most by which numbers of parameters may differ to be equal."""
Runs = Callable[[Base, float], list[SuiteRun]]
"""From a task with an entry, and its rate, to runs."""


@dataclass(frozen=True)
class Phase:
    """A part of the protocol.

    Args:
        runs: of an entry on a task at the chosen rate.
        some: only for the encodings of ``more_seeds_for``, and for those that are not the suite's.
    """

    name: str
    runs: Runs
    some: bool = True

    def entries(self, suite: Suite, entries: list[str]) -> list[str]:
        """Those of the entries that it has runs of."""
        ours = {*suite.encodings, *suite.controls}
        chosen = suite.protocol.more_seeds_for
        return [e for e in entries if not self.some or e in chosen or e not in ours]


NAMES = (TUNING, SCORE, "more_seeds", "longer", "capacity", EQUAL_TIME, EQUAL_PARAMETERS)
DEFAULT = (TUNING, SCORE)
"""Those that are run unless others are asked for."""


def phases(suite: Suite, composer: Composer) -> dict[str, Phase]:
    """Each phase by its name, in the order in which they are run."""
    protocol = suite.protocol

    def tuning(base: Base, _: float) -> list[SuiteRun]:
        seeds = protocol.tuning_seeds
        return [base.run(TUNING, lr, seed) for seed in seeds for lr in protocol.rates]

    def score(base: Base, lr: float) -> list[SuiteRun]:
        return [base.run(SCORE, lr, seed) for seed in range(protocol.seeds)]

    def more_seeds(base: Base, lr: float) -> list[SuiteRun]:
        seeds = range(protocol.seeds, protocol.more_seeds)
        return [base.run(SCORE, lr, seed) for seed in seeds]

    def longer(base: Base, lr: float) -> list[SuiteRun]:
        return [
            base.run(f"steps_x{times}", lr, seed, times * base.steps)
            for times in protocol.longer
            for seed in range(protocol.seeds)
        ]

    def capacity(base: Base, lr: float) -> list[SuiteRun]:
        found = []
        for split in suite.tasks[base.task].generalises:
            at = composer.base(base.task, base.entry, *trained_at(base, split))
            if at is not None:
                phase = f"{CAPACITY}{split}"
                found += [at.run(phase, lr, seed) for seed in range(protocol.seeds)]
        return found

    def as_long(base: Base, lr: float) -> list[SuiteRun]:
        steps = equal_time(base.entry, base.steps, base.plan.dims.train_len)
        if steps is None:
            composer.refusals[base.task, f"{base.entry}, equal_time"] = "its cost is not known"
            return []
        return [base.run(EQUAL_TIME, lr, seed, steps) for seed in range(protocol.seeds)]

    def as_large(base: Base, lr: float) -> list[SuiteRun]:
        baseline = composer.base(base.task, BASELINE)
        if baseline is None or base.plan.config.model.get("d_ff", 0) is not None:
            reason = "its model has no d_ff to change"
            composer.refusals[base.task, f"{base.entry}, {EQUAL_PARAMETERS}"] = reason
            return []
        at = composer.base(base.task, base.entry, f"model.d_ff={equal_width(base, baseline)}")
        if at is None:
            return []
        wanted, found = _parameters(baseline.plan), _parameters(at.plan)
        if abs(found - wanted) > EQUAL * wanted:
            reason = f"{found} parameters are the nearest to {wanted}, those of {BASELINE}"
            composer.refusals[base.task, f"{base.entry}, {EQUAL_PARAMETERS}"] = reason
            return []
        return [at.run(EQUAL_PARAMETERS, lr, seed) for seed in range(protocol.seeds)]

    made = (
        Phase(TUNING, tuning, some=False),
        Phase(SCORE, score, some=False),
        Phase("more_seeds", more_seeds),
        Phase("longer", longer),
        Phase("capacity", capacity),
        Phase(EQUAL_TIME, as_long),
        Phase(EQUAL_PARAMETERS, as_large),
    )
    return {phase.name: phase for phase in made}


def trained_at(base: Base, split: str) -> list[str]:
    """The overrides that train a task on what one of its splits measures."""
    changes = base.plan.config.task["splits"][split]
    by_length = base.plan.config.train.length is not None
    words = [
        f"{'train.length' if key == 'length' and by_length else f'task.{key}'}={value}"
        for key, value in changes.items()
    ]
    return [*words, "task.splits={}"]


def equal_width(base: Base, baseline: Base) -> int:
    """The ``model.d_ff`` with which the whole model has as nearly as possible as many parameters as
    the baseline's; the smaller one of two that are equally near."""
    config: Any = base.plan.model_config
    width: int = config.ff_width
    wanted, now = _parameters(baseline.plan), _parameters(base.plan)
    wider = replace(base.plan, model_config=replace(config, d_ff=width + 1))
    each = _parameters(wider) - now
    return max(1, width + math.ceil((wanted - now) / each - 0.5))


def _parameters(plan: Plan) -> int:
    return sum(p.numel() for p in plan.model().parameters())
