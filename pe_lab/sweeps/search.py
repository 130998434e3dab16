"""A search: a sweeper draws what it tries from the in-domain errors it has seen, and only those."""

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
from pe_lab.config.check import check_job
from pe_lab.config.hydra_internals import Hydra
from pe_lab.config.overrides import as_typed
from pe_lab.config.schema import register_resolvers
from pe_lab.sweeps.retry import STRIKES
from pe_lab.sweeps.worker import HELD_S, LINE_EVERY_S, run_patiently, worker_of

logger = logging.getLogger("pe_lab")

GRACE_S = 5.0
"""How long a trial that may not begin leaves to those of its batch that write checkpoints."""


@dataclass(frozen=True)
class Trial:
    """The task function of a search: it returns what is to be small, the in-domain error.

    Args:
        sweep, launcher, pool: as a SweepJob's.
        of: how many trials are asked for.
        fixed: the line's words that all trials share.
        again: whether the search was begun before: ``force`` has done its work.
    """

    sweep: str
    launcher: int
    pool: bool
    of: int
    fixed: frozenset[str]
    again: bool = False

    def __call__(self, cfg: DictConfig) -> float | None:
        """Do the run, or read what it found; that error. None: it failed, and was told; the
        sweeper counts it so and goes on.

        Raises:
            Interrupted: a signal came: the search ends.
        """
        register_resolvers()
        words = as_typed(HydraConfig.get().overrides.task)
        number = HydraConfig.get().job.num + 1
        drawn = " ".join(word for word in words if word not in self.fixed)
        name = f"[{number}/{self.of}] {drawn}"
        with worker_of(self.launcher if self.pool else None):
            if self.pool and (stop := stopping()) is not None:
                time.sleep(GRACE_S)
                raise stop
            try:
                summary = run_patiently(
                    check_job(cfg), words, self.sweep, name, number,
                    line_every=LINE_EVERY_S if self.pool else None,
                    again=self.again, patience=HELD_S,
                )  # fmt: skip
            except Interrupted:
                if not self.pool:
                    raise
                # Raised in a worker, it would have the others killed at their checkpoints.
                return None
            except Exception as error:
                logger.error("%s: failed: %s", name, sentence(error), exc_info=bool(cfg.debug))
                return None
        found = float(summary["metrics"]["in_domain/error"])
        logger.info("%s: in_domain %s %%", name, percent(found))
        return found


def search(hydra: Hydra, cfg: DictConfig, overrides: list[str], sweep: str, pool: bool) -> None:
    """Run the sweeper's search to its end, and tell the best it saw.

    Raises:
        RunError: no trial ended well, or workers are killed again and again.
        Interrupted: a signal came; the same line goes on.
    """
    import optuna  # type: ignore[import-not-found, unused-ignore]

    # What it says of a trial is told already.
    logging.getLogger("hydra_plugins.hydra_optuna_sweeper").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(logging.ERROR)
    runs, barren, again = Path(cfg.runs_dir), 0, False
    while True:
        found = len(list(runs.glob("*/*/seed*/summary.json")))
        trials = int(cfg.hydra.sweeper.get("n_trials", 0))
        job = Trial(sweep, os.getpid(), pool, trials, frozenset(as_typed(overrides)), again)
        try:
            with warnings.catch_warnings():
                # The sweeper calls its own library by names that this one has given up.
                warnings.simplefilter("ignore")
                hydra.multirun("config", job, overrides)
            break
        except BrokenProcessPool:
            # The trials are drawn again as they were; those that are finished are only read.
            barren = 0 if len(list(runs.glob("*/*/seed*/summary.json"))) > found else barren + 1
            again = True
            if barren == STRIKES:
                raise RunError(
                    f"{STRIKES} times a worker was killed before a trial ended: is there memory "
                    "for hydra.launcher.n_jobs of them? The same line goes on"
                ) from None
            logger.warning("a worker was killed: going on with the search in new ones")
        except ValueError as error:
            if stopping() is None:
                raise RunError(
                    f"no trial of the search ended well ({error}): those that failed are told above"
                ) from None
            break
    if (stop := stopping()) is not None:
        raise stop
    _tell(Path(cfg.hydra.sweep.dir), overrides)


def _tell(folder: Path, overrides: list[str]) -> None:
    results: Any = OmegaConf.load(folder / "optimization_results.yaml")
    best = dict(results.best_params)
    asked = [word for word in as_typed(overrides) if not word.lstrip("+~").startswith("hydra")]
    fixed = [word for word in asked if word.partition("=")[0].lstrip("+") not in best]
    words = [*fixed, *(f"{key}={value}" for key, value in best.items())]
    out = console()
    out.print(f"best in_domain {percent(results.best_value)} %", soft_wrap=True)
    out.print(f"its line: pe-lab {shlex.join(words)}", soft_wrap=True, markup=False)
    out.print(f"written to  {folder / 'optimization_results.yaml'}", soft_wrap=True)
