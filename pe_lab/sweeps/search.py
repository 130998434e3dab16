"""A search: a sweeper draws the next trials from the in-domain errors of the previous ones."""

import logging
import os
import shlex
import time
import warnings
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from pe_lab.common.console import console, percent
from pe_lab.common.errors import Interrupted, RunError, sentence
from pe_lab.common.signals import stopping
from pe_lab.config.check import check_composed
from pe_lab.config.hydra_internals import Hydra
from pe_lab.config.overrides import as_typed
from pe_lab.config.schema import register_resolvers
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.sweeps.worker import LOCK_WAIT_S, PROGRESS_INTERVAL_S, run_when_free, serving

logger = logging.getLogger("pe_lab")

CHECKPOINT_WAIT_S = 5.0
"""How long a trial that may not begin waits, for the others of its batch to write checkpoints."""


@dataclass(frozen=True)
class Trial:
    """The task function of a search: returns the in-domain error, which is minimized.

    Args:
        sweep, launcher, pool: as in ``SweepJob``.
        total: number of trials.
        fixed: the words that all trials share.
    """

    sweep: str
    launcher: int
    pool: bool
    total: int
    fixed: frozenset[str]

    def __call__(self, cfg: DictConfig) -> float | None:
        """Do the run, or read it where it is finished, and return its error.

        None: the trial failed, which is logged; the sweeper counts it as failed and goes on.

        Raises:
            Interrupted: a signal came: the search ends.
        """
        from pe_lab.experiment.run import SweepPlace

        register_resolvers()
        words = as_typed(HydraConfig.get().overrides.task)
        number = HydraConfig.get().job.num + 1
        drawn = " ".join(word for word in words if word not in self.fixed)
        name = f"[{number}/{self.total}] {drawn}"
        interval = PROGRESS_INTERVAL_S if self.pool else None
        with serving(self.launcher if self.pool else None):
            if self.pool and (stop := stopping()) is not None:
                time.sleep(CHECKPOINT_WAIT_S)
                raise stop
            try:
                summary = run_when_free(
                    check_composed(cfg),
                    words,
                    SweepPlace(name, self.sweep, number, interval),
                    resume=False,
                    wait_s=LOCK_WAIT_S,
                )
            except Interrupted:
                if not self.pool:
                    raise
                # Raised in a worker, it would have the others killed while they write checkpoints.
                return None
            except Exception as error:
                logger.error("%s: failed: %s", name, sentence(error), exc_info=bool(cfg.debug))
                return None
        found = float(summary["metrics"][metric_name(IN_DOMAIN, "error")])
        logger.info("%s: in_domain %s %%", name, percent(found))
        return found


def search(hydra: Hydra, cfg: DictConfig, overrides: list[str], sweep: str, pool: bool) -> None:
    """Run the sweeper's search to its end, and print the best trial.

    Raises:
        RunError: no trial ended well, or a worker was killed.
        Interrupted: a signal came; the same command continues.
    """
    import optuna  # type: ignore[import-not-found, unused-ignore]

    # Trials are logged here already.
    logging.getLogger("hydra_plugins.hydra_optuna_sweeper").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(logging.ERROR)
    trials = int(cfg.hydra.sweeper.get("n_trials", 0))
    trial = Trial(sweep, os.getpid(), pool, trials, frozenset(as_typed(overrides)))
    try:
        with warnings.catch_warnings():
            # The sweeper uses deprecated names of optuna.
            warnings.simplefilter("ignore")
            hydra.multirun("config", trial, overrides)
    except BrokenProcessPool:
        if stopping() is None:
            raise RunError(
                "a worker was killed: is there memory for hydra.launcher.n_jobs of them? The same "
                "command continues"
            ) from None
    except ValueError as error:
        if stopping() is None:
            raise RunError(
                f"no trial of the search ended well ({error}): the failures are listed above"
            ) from None
    if (stop := stopping()) is not None:
        raise stop
    _print_best(Path(cfg.hydra.sweep.dir), overrides)


def _print_best(folder: Path, overrides: list[str]) -> None:
    results: Any = OmegaConf.load(folder / "optimization_results.yaml")
    best = dict(results.best_params)
    typed = [word for word in as_typed(overrides) if not word.lstrip("+~").startswith("hydra")]
    fixed = [word for word in typed if word.partition("=")[0].lstrip("+") not in best]
    words = [*fixed, *(f"{key}={value}" for key, value in best.items())]
    out = console()
    out.print(f"best in_domain {percent(results.best_value)} %", soft_wrap=True)
    out.print(f"command: pe-lab {shlex.join(words)}", soft_wrap=True)
    out.print(f"written to  {folder / 'optimization_results.yaml'}", soft_wrap=True)
