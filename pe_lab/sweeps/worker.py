"""What a launcher runs: one job of a line, in this process or in a worker's."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_lab.common.console import percent
from pe_lab.common.errors import HeldError, Interrupted, sentence
from pe_lab.common.signals import serve, stopping
from pe_lab.config.check import check_job
from pe_lab.config.overrides import as_typed
from pe_lab.config.schema import Config, register_resolvers

logger = logging.getLogger("pe_lab")

HELD_S = 60.0
"""How long the folder of a job is waited for that another process writes."""

LINE_EVERY_S = 60.0
"""Between the lines that a worker tells its progress with."""


@dataclass(frozen=True)
class SweepJob:
    """The task function of a line's jobs. It is pickled: what it is told here is all it knows.

    Args:
        sweep: the line's name.
        launcher: the launching process.
        pool: whether the jobs run in workers that are children of the launching process, which
            must not lose one.
        numbers: of each job that is launched, its number in the line, from 1.
        of: how many jobs the line has.
        labels: the name of each job of the line.
        begun: those that this line began before: ``force`` has done its work for them.
        patient: whether to wait for folders that others write.
    """

    sweep: str
    launcher: int
    pool: bool
    numbers: Sequence[int]
    of: int
    labels: Sequence[str]
    begun: frozenset[int] = frozenset()
    patient: bool = False

    def __call__(self, cfg: DictConfig) -> tuple[str, str] | None:
        """Do the job; how it ended where its folder does not say: ``("failed" or "held", why)``.

        Raises:
            Interrupted: a signal came, and this process is no worker of a pool.
        """
        with worker_of(self.launcher if self.pool else None):
            try:
                return self._do(cfg)
            except Interrupted:
                if not self.pool:
                    raise
                return None

    def _do(self, cfg: DictConfig) -> tuple[str, str] | None:
        number = self.numbers[HydraConfig.get().job.num]
        name = f"[{number}/{self.of}] {self.labels[number - 1]}"
        ended: dict[str, Any] | Exception
        try:
            register_resolvers()
            ended = run_patiently(
                check_job(cfg), as_typed(HydraConfig.get().overrides.task), self.sweep,
                name, number, line_every=LINE_EVERY_S if self.pool else None,
                again=number in self.begun, patience=HELD_S if self.patient else 0.0,
            )  # fmt: skip
        except Exception as error:
            ended = error
        return tell(name, ended, bool(cfg.debug))


def tell(name: str, ended: dict[str, Any] | Exception, traceback: bool) -> tuple[str, str] | None:
    """Say what a job ended with, its summary or what it raised; as a SweepJob returns it."""
    if isinstance(ended, HeldError):
        return "held", str(ended)
    if isinstance(ended, Exception):
        logger.error("%s: failed: %s", name, sentence(ended), exc_info=ended if traceback else None)
        return "failed", sentence(ended)
    found = percent(ended["metrics"]["in_domain/error"])
    logger.info("%s: finished, in_domain %s %%", name, found)
    return None


def worker_of(launcher: int | None) -> AbstractContextManager[None]:
    """Serve the launcher, unless there is none or it is this process, as a pool of one is."""
    return nullcontext() if launcher in (None, os.getpid()) else serve(int(launcher or 0))


def run_patiently(
    config: Config,
    words: list[str],
    sweep: str,
    name: str,
    number: int,
    *,
    line_every: float | None,
    again: bool,
    patience: float,
) -> dict[str, Any]:
    """Run a job of a sweep; HeldError only after ``patience`` seconds. ``again``: without force."""
    from pe_lab.experiment.run import SweepPlace, run
    from pe_lab.training.plan import plan

    if again:
        config = replace(config, force=False)  # type: ignore[type-var]
    end = time.monotonic() + patience
    while True:
        if (stop := stopping()) is not None:
            raise stop
        try:
            return run(plan(config), words, SweepPlace(name, sweep, number, line_every))
        except HeldError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
