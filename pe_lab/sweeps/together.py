"""Runs that are trained together: each goes its own way between the steps, which are taken for
all of them at once."""

import functools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pe_lab.common.console import StepProgress
from pe_lab.common.errors import Interrupted, RunError
from pe_lab.common.run_log import everything_said
from pe_lab.common.signals import stopping
from pe_lab.config.schema import plain
from pe_lab.experiment.run import Shown, stepwise
from pe_lab.experiment.summary import evaluation_sets
from pe_lab.sweeps.jobs import Job
from pe_lab.sweeps.worker import tell
from pe_lab.training.batched import Batched
from pe_lab.training.loss import Microbatch
from pe_lab.training.plan import Plan
from pe_lab.training.trainer import Taken, Trainer

SILENT = float("inf")


@dataclass(frozen=True, eq=False)
class Member:
    """A job of the line that this process does.

    Args:
        words: its overrides, for the record.
        name: what it is called on the terminal.
    """

    job: Job
    plan: Plan
    words: list[str]
    name: str


def kind(plan: Plan) -> str:
    """The same for runs that can be trained together: the configuration but for seed and rate."""
    resolved = plain(plan.config)
    del resolved["seed"], resolved["train"]["lr"]
    return json.dumps(resolved, sort_keys=True)


def name_of(members: Sequence[Member]) -> str:
    """``flipflop rope, 8 runs``."""
    names = members[0].plan.config.names
    return f"{names['task']} {names['pe']}, {len(members)} runs"


class Together:
    """Runs of one kind, each under way to its summary.

    Args:
        sweep: the line's name.
    """

    def __init__(self, members: Sequence[Member], sweep: str) -> None:
        self.members = members
        sets = functools.cache(partial(evaluation_sets, members[0].plan))
        # They share a GPU: the first one's.
        number = members[0].job.number
        self.runs = {
            member: stepwise(
                member.plan, member.job.folder, member.words, sweep,
                Shown(member.name, SILENT, number, together=True), sets,
            )
            for member in members
        }  # fmt: skip
        self.waiting: dict[Member, Trainer] = {}
        self.batched: Batched | None = None

    def train(self) -> None:
        """Bring all of them to their end, and have each job say how it ended where its folder does
        not.

        Raises:
            Interrupted: a signal came; every checkpoint is written.
        """
        with everything_said():
            for member in self.members:
                # To begin takes a while where a dashboard begins too.
                if stopping() is None:
                    self._go_on(member, None)
            steps, (start, _) = self.members[0].plan.config.train.steps, self._progress()
            with StepProgress(name_of(self.members), steps, start) as progress:
                while self.waiting:
                    for member, taken in self._step().items():
                        self._go_on(member, taken)
                    progress.step(*self._progress())
        if (stop := stopping()) is not None:
            raise stop

    def _go_on(self, member: Member, taken: Taken | BaseException | None) -> None:
        """On to the member's next step, or to its end."""
        run = self.runs[member]
        ended: dict[str, Any] | Exception | None = None
        try:
            if isinstance(taken, BaseException):
                self.waiting[member] = run.throw(taken)
            else:
                self.waiting[member] = run.send(taken)
            return
        except StopIteration as end:
            ended = end.value
        except Interrupted:
            # Its folder says so; the others come to this by themselves.
            pass
        except Exception as error:
            ended = error
        self.waiting.pop(member, None)
        if ended is not None:
            member.job.told = tell(member.name, ended, member.plan.config.debug)

    def _step(self) -> dict[Member, Taken | BaseException | None]:
        """What becomes of the next step of each; None: it is to take it itself."""
        if len(self.waiting) == 1:
            return dict.fromkeys(self.waiting)
        taken: dict[Member, Taken | BaseException | None] = {}
        read: dict[Member, list[Microbatch]] = {}
        began = time.perf_counter()
        for member, trainer in self.waiting.items():
            try:
                read[member] = trainer.parts()
            except Exception as error:
                taken[member] = error
        # The others take the same step in the next turn, without it.
        if taken:
            return taken
        if len({part.batch.tokens.shape for parts in read.values() for part in parts[:1]}) > 1:
            return dict.fromkeys(self.waiting)
        trainers = list(self.waiting.values())
        reading = (time.perf_counter() - began) / len(trainers)
        try:
            if self.batched is None or self.batched.trainers != trainers:
                self.batched = Batched(trainers)
            steps = self.batched.step(list(read.values()))
            return {
                member: replace(step, seconds=step.seconds + reading)
                for member, step in zip(read, steps, strict=True)
            }
        except torch.OutOfMemoryError as error:
            told = RunError(
                f"{len(trainers)} models at once need more memory than there is ({error}): lower "
                "hydra.launcher.most, then start the same line again"
            )
            return dict.fromkeys(self.waiting, told)
        except BaseException as error:
            return dict.fromkeys(self.waiting, error)

    def _progress(self) -> tuple[int, float]:
        """The step of the one that is furthest behind, and the mean of their losses."""
        behind = min((t.step for t in self.waiting.values()), default=0)
        losses = [trainer.last_loss for trainer in self.waiting.values()]
        return behind, statistics.fmean(losses) if losses else float("nan")
