"""The launcher ``batched``: jobs that differ in seed and rate alone are trained as one model.

Hydra knows no launcher that does several jobs in one; this one is given what the line has
composed and checked already. Groups of jobs come one after another, all in this process.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hydra._internal.callbacks import Callbacks
from hydra.core.utils import JobReturn, JobStatus, configure_log
from omegaconf import DictConfig

from pe_lab.common.errors import UsageError, sentence
from pe_lab.common.run_log import warned_once
from pe_lab.common.signals import stopping
from pe_lab.config.overrides import as_given
from pe_lab.experiment.machine import prepare
from pe_lab.sweeps.jobs import Job
from pe_lab.sweeps.pace import measured_pace
from pe_lab.sweeps.together import Member, Together, kind, name_of
from pe_lab.sweeps.worker import HELD_S, run_patiently, tell
from pe_lab.training.plan import Plan

logger = logging.getLogger("pe_lab")

BATCHED = "pe_lab.sweeps.batched.BatchedLauncher"
"""The ``_target_`` that stands for this launcher."""

WAYS = ("measure", "batched", "alone")


def check_batched(cfg: DictConfig, plans: Sequence[Plan] = ()) -> None:
    """UsageError where this launcher cannot do what the line asks for.

    Args:
        plans: all of the line's.
    """
    launcher = cfg.hydra.launcher
    if unknown := launcher.keys() - {"_target_", "how", "most"}:
        raise UsageError(
            f"hydra.launcher.{min(unknown)} is no key of hydra/launcher=batched, which has how and "
            "most: leave it out"
        )
    how = launcher.how
    if how not in WAYS:
        raise UsageError(
            f"hydra.launcher.how={how} is not allowed: set it to {', '.join(WAYS[:-1])} or "
            f"{WAYS[-1]}"
        )
    if launcher.most is None:
        raise UsageError(
            "hydra.launcher.most=null is not allowed: set it to a whole number from 1, or leave it "
            "out"
        )
    if cfg.hydra.runtime.choices["hydra/sweeper"] != "basic":
        raise UsageError(
            "hydra/launcher=batched is not allowed in a search, whose jobs are not known before: "
            "leave out the launcher or the sweeper"
        )


class BatchedLauncher:
    """Does jobs of a line, those together that can be.

    Args:
        cfg: what Hydra was asked.
        sweep: the line's name.
        jobs, composed, plans: all of the line's.
    """

    def __init__(
        self,
        cfg: DictConfig,
        callbacks: Callbacks,
        sweep: str,
        jobs: Sequence[Job],
        composed: Sequence[DictConfig],
        plans: Sequence[Plan],
    ) -> None:
        self.cfg, self.callbacks, self.sweep = cfg, callbacks, sweep
        self.how, self.most = str(cfg.hydra.launcher.how), int(cfg.hydra.launcher.most)
        self.jobs, self.composed, self.plans = jobs, composed, plans

    def __call__(self, batch: Sequence[Job], patient: bool) -> None:
        """Do some of the jobs, and have each say how it ended where its folder does not.

        Args:
            patient: whether to wait for folders that others write.

        Raises:
            Interrupted: a signal came; every checkpoint is written.
        """
        configure_log(self.cfg.hydra.job_logging, self.cfg.hydra.verbose)
        for job in batch:
            self.callbacks.on_job_start(config=self._composed(job), task_function=lambda cfg: None)
        with warned_once():
            self._do([self._member(job) for job in batch], patient)
        for job in batch:
            cfg = self._composed(job)
            returned = JobReturn(overrides=job.words, cfg=cfg, status=JobStatus.COMPLETED)
            returned.return_value = job.told
            self.callbacks.on_job_end(config=cfg, job_return=returned)

    def _composed(self, job: Job) -> DictConfig:
        return self.composed[job.number - 1]

    def _member(self, job: Job) -> Member:
        plan = self.plans[job.number - 1]
        if job.begun():
            # Force has done its work.
            config = replace(plan.config, force=False)  # type: ignore[type-var]
            plan = replace(plan, config=config)
        words = as_given(self._composed(job).hydra.overrides.task)
        return Member(job, plan, words, f"[{job.number}/{len(self.jobs)}] {job.label}")

    def _do(self, members: Sequence[Member], patient: bool) -> None:
        groups: dict[str, list[Member]] = {}
        for member in members:
            groups.setdefault(kind(member.plan), []).append(member)
        for group in groups.values():
            at_once = 1 if patient else self._at_once(group)
            for part in _parts(group, at_once):
                if (stop := stopping()) is not None:
                    raise stop
                if len(part) == 1:
                    self._alone(part[0], HELD_S if patient else 0.0)
                else:
                    Together(part, self.sweep).train()

    def _at_once(self, group: Sequence[Member]) -> int:
        """How many of a group to train together."""
        config = group[0].plan.config
        if len(group) == 1 or self.most == 1 or self.how == "alone":
            return 1
        name = name_of(group)
        if config.train.precision != "float32":
            logger.info("%s: one after another, not together but in float32", name)
            return 1
        device = prepare(config, group[0].job.number)
        # Whether it can be done at all is tried in any case.
        most = self.most if self.how == "measure" else 2
        try:
            pace = measured_pace([member.plan for member in group], device, most)
        except Exception as error:
            logger.warning("%s: one after another, together is not possible: %s", name,
                           sentence(error))  # fmt: skip
            return 1
        if self.how == "batched":
            return self.most
        chosen = pace.at_once if pace.together_s < pace.alone_s else 1
        logger.info(
            "%s: %.2f ms a step and run with %d at once, %.2f alone: %s",
            name, 1e3 * pace.together_s, pace.at_once, 1e3 * pace.alone_s,
            f"{chosen} at once" if chosen > 1 else "one after another",
        )  # fmt: skip
        return chosen

    def _alone(self, member: Member, patience: float) -> None:
        try:
            ended: dict[str, object] | Exception = run_patiently(
                member.plan.config, member.words, self.sweep, member.name, member.job.number,
                line_every=None, again=False, patience=patience,
            )  # fmt: skip
        except Exception as error:
            ended = error
        member.job.told = tell(member.name, ended, member.plan.config.debug)


def _parts(group: Sequence[Member], at_once: int) -> Iterator[Sequence[Member]]:
    """The group in equal parts of at most so many."""
    n = math.ceil(len(group) / at_once)
    for i in range(n):
        yield group[i * len(group) // n : (i + 1) * len(group) // n]
