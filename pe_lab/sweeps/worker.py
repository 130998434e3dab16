"""What a launcher runs: one job of a sweep, in this process or in a worker's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_lab.config.compose import as_typed, check_composed
from pe_lab.core.console import logger, percent
from pe_lab.core.errors import HeldError, Interrupted, sentence
from pe_lab.core.metrics import IN_DOMAIN, mean_ood, metric_name
from pe_lab.experiment.signals import get_interrupt

LOCK_WAIT_S = 60.0
"""How long to wait for the folder of a job that another process is writing."""


@dataclass(frozen=True)
class SweepJob:
    """The task function of a sweep's jobs, pickled for workers.

    Args:
        sweep: name of the sweep.
        pool: whether jobs run in workers that are children of the launching process and must not
            die of a signal.
        numbers: of each launched job, its number in the sweep, from 1.
        labels: the name of each job of the sweep.
        begun: numbers of the jobs that this sweep began before: ``force`` has had its effect.
    """

    sweep: str
    pool: bool
    numbers: Sequence[int]
    labels: Sequence[str]
    begun: frozenset[int] = frozenset()

    def __call__(self, cfg: DictConfig) -> tuple[str, str] | None:
        """Do the job; its state and the reason where its folder does not have them.

        Raises:
            Interrupted: a signal came, and this process is not a worker of a pool.
        """
        from pe_lab.experiment.run import SweepPlace, run
        from pe_lab.train.plan import plan

        number = self.numbers[HydraConfig.get().job.num]
        name = f"[{number}/{len(self.labels)}] {self.labels[number - 1]}"
        place = SweepPlace(name, self.sweep, number)
        try:
            if (stop := get_interrupt()) is not None:
                raise stop
            config = check_composed(cfg)
            if number in self.begun:
                config = replace(config, force=False)  # type: ignore[type-var]
            words = as_typed(HydraConfig.get().overrides.task)
            summary = run(plan(config), words, place, LOCK_WAIT_S)
        except Interrupted:
            if self.pool:
                return None
            raise
        except HeldError as error:
            return "held", str(error)
        except Exception as error:
            logger.error("%s: failed: %s", name, sentence(error), exc_info=bool(cfg.debug))
            return "failed", sentence(error)
        metrics = summary["metrics"]
        errors = metrics[metric_name(IN_DOMAIN, "error")], mean_ood(metrics, summary["splits"])
        logger.info("%s: finished, in_domain %s %%, OOD mean %s %%", name, *map(percent, errors))
        return None
