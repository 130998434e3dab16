"""What a launcher runs: one job of a sweep, in this process or in a worker's."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_lab.config.check import check_composed
from pe_lab.config.overrides import as_typed
from pe_lab.config.schema import Config, register_resolvers
from pe_lab.core.console import percent
from pe_lab.core.errors import HeldError, Interrupted, sentence
from pe_lab.core.metrics import IN_DOMAIN, mean_ood, metric_name
from pe_lab.experiment.signals import stopping

if TYPE_CHECKING:
    from pe_lab.experiment.run import SweepPlace

logger = logging.getLogger("pe_lab")

LOCK_WAIT_S = 60.0
"""How long to wait for the folder of a job that another process is writing."""

PROGRESS_INTERVAL_S = 60.0
"""Seconds between a worker's lines of progress."""

NOT_BEGUN = ("not begun", "no time left")


@dataclass(frozen=True)
class SweepJob:
    """The task function of a sweep's jobs, pickled for workers.

    Args:
        sweep: name of the sweep.
        pool: whether jobs run in workers that are children of the launching process and must not
            die of a signal.
        numbers: of each launched job, its number in the sweep, from 1.
        total: number of jobs in the sweep.
        labels: the name of each job of the sweep.
        begun: numbers of the jobs that this sweep began before: ``force`` has had its effect.
        wait_for_locks: whether to wait for folders that other processes are writing.
        until: the time (seconds since the epoch) from which no job is begun; None: no such time.
    """

    sweep: str
    pool: bool
    numbers: Sequence[int]
    total: int
    labels: Sequence[str]
    begun: frozenset[int] = frozenset()
    wait_for_locks: bool = False
    until: float | None = None

    def __call__(self, cfg: DictConfig) -> tuple[str, str] | None:
        """Do the job; its state and the reason where its folder does not have them: ``("failed",
        reason)``, ``("held", reason)``, ``("not begun", "no time left")``.

        Raises:
            Interrupted: a signal came, and this process is not a worker of a pool.
        """
        try:
            return self._run(cfg)
        except Interrupted:
            if not self.pool:
                raise
            return None

    def _run(self, cfg: DictConfig) -> tuple[str, str] | None:
        from pe_lab.experiment.run import SweepPlace

        if self.until is not None and time.time() >= self.until:
            return NOT_BEGUN
        number = self.numbers[HydraConfig.get().job.num]
        name = f"[{number}/{self.total}] {self.labels[number - 1]}"
        interval = PROGRESS_INTERVAL_S if self.pool else None
        try:
            register_resolvers()
            summary = run_when_free(
                check_composed(cfg),
                as_typed(HydraConfig.get().overrides.task),
                SweepPlace(name, self.sweep, number, interval),
                resume=number in self.begun,
                wait_s=LOCK_WAIT_S if self.wait_for_locks else 0.0,
            )
        except HeldError as error:
            return "held", str(error)
        except Exception as error:
            logger.error("%s: failed: %s", name, sentence(error), exc_info=bool(cfg.debug))
            return "failed", sentence(error)
        metrics, splits = summary["metrics"], summary["splits"]
        errors = metrics[metric_name(IN_DOMAIN, "error")], mean_ood(metrics, splits)
        logger.info("%s: finished, in_domain %s %%, OOD mean %s %%", name, *map(percent, errors))
        return None


def run_when_free(
    config: Config, words: list[str], place: "SweepPlace", *, resume: bool, wait_s: float
) -> dict[str, Any]:
    """Run a job of a sweep and return its summary.

    Args:
        resume: ignore ``force``, which had its effect when the job began.
        wait_s: how long to wait for the folder while another process is writing it.

    Raises:
        HeldError: the folder was not free in that time.
    """
    from pe_lab.experiment.run import run
    from pe_lab.train.plan import plan

    if resume:
        config = replace(config, force=False)  # type: ignore[type-var]
    end = time.monotonic() + wait_s
    while True:
        if (stop := stopping()) is not None:
            raise stop
        try:
            return run(plan(config), words, place)
        except HeldError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
