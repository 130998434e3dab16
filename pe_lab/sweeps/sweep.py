"""A sweep's name, composed configuration and launcher: what launches some of its jobs."""

import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf

from pe_lab.common.errors import Interrupted
from pe_lab.common.signals import StopOnSignal, begin_worker, passing_to_workers, stopping
from pe_lab.config.compose import open_hydra
from pe_lab.config.hydra_internals import BasicSweeper, Callbacks
from pe_lab.store.run_id import sweep_name
from pe_lab.sweeps import slurm
from pe_lab.sweeps.jobs import Job
from pe_lab.sweeps.launchers import JOBLIB, check_installed, check_numbers
from pe_lab.sweeps.retry import Launch
from pe_lab.sweeps.worker import SweepJob


def check_launcher(cfg: DictConfig) -> bool:
    """Refuse a launcher or a sweeper that cannot work here; returns whether the sweeper runs every
    combination, and so is not called.

    Raises:
        UsageError: a package or SLURM is missing, or a number is out of range.
    """
    check_installed(cfg)
    check_numbers(cfg)
    if cfg.hydra.launcher._target_ == slurm.LAUNCHER:
        slurm.check_slurm()
    basic: bool = cfg.hydra.sweeper._target_ == f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"
    return basic


class Sweep:
    """A sweep with its name, composed configuration and launcher.

    Args:
        args: the words of the command line, as Hydra's parser splits them.
        composed: the configuration of one of its jobs.
        name: None: made of the words.
    """

    def __init__(
        self, args: Any, composed: DictConfig, runs_dir: str, name: str | None = None
    ) -> None:
        words = [word for word in args.overrides if not word.lstrip("+~").startswith("hydra")]
        keys = {word.lstrip("+").partition("=")[0] for word in words}
        # The search space of the yamls.
        params = composed.hydra.sweeper.get("params") or {}
        words += [f"{key}={values}" for key, values in params.items() if key not in keys]
        self.name = name or sweep_name(words, Path(runs_dir) / ".sweeps")
        # Read by conf/config.yaml: each start of a sweep has a separate folder.
        start = f"{datetime.now():%Y-%m-%d_%H-%M-%S.%f}-{socket.gethostname()}-{os.getpid()}"
        os.environ["PE_LAB_SWEEP"] = f"{self.name}/{start}"
        self.hydra = open_hydra(args)
        self.cfg = self.hydra.compose_config(
            "config", args.overrides, RunMode.MULTIRUN, with_log_configuration=True
        )
        self.callbacks = Callbacks(self.cfg)
        # Its workers are children of this process.
        self.pool = self.cfg.hydra.launcher._target_ == JOBLIB
        self.slurm = self.cfg.hydra.launcher._target_ == slurm.LAUNCHER

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record the configuration; signals stop the jobs that run inside, as Interrupted."""
        folder = Path(self.cfg.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.cfg, folder / "multirun.yaml")
        watch: AbstractContextManager[Any] = passing_to_workers() if self.pool else StopOnSignal()
        if self.slurm:
            watch = slurm.cancelling(self.cfg.hydra.launcher.submitit_folder)
        try:
            with watch, warnings.catch_warnings():
                # loky replaces a worker whose memory grew, between two jobs: nothing is lost.
                warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
                yield
                if (stop := stopping()) is not None:
                    raise stop
        except KeyboardInterrupt:
            raise Interrupted(2) from None
        finally:
            GlobalHydra.instance().clear()
            if self.pool:
                # Its workers would wait for more, for minutes.
                get_reusable_executor(reuse=True).shutdown(wait=True)

    def launch(self, jobs: Sequence[Job], until: float | None = None) -> Launch:
        """A function that launches some of these jobs and sets how they ended.

        Args:
            until: the time (seconds since the epoch) from which no job is begun.
        """

        def launch(batch: Sequence[Job], wait_for_locks: bool) -> None:
            job = SweepJob(
                sweep=self.name,
                launcher=os.getpid(),
                pool=self.pool,
                numbers=[job.number for job in batch],
                total=len(jobs),
                labels=[job.label for job in jobs],
                begun=frozenset(job.number for job in batch if job.has_begun()),
                wait_for_locks=wait_for_locks,
                until=until,
            )
            launcher: Any = Plugins.instance().instantiate_launcher(
                hydra_context=HydraContext(self.hydra.config_loader, self.callbacks),
                task_function=job,
                config=self.cfg,
            )
            if self.pool:
                # Arguments of joblib.Parallel, which Hydra has no keys for.
                launcher.joblib |= {"initializer": begin_worker, "initargs": (os.getpid(),)}
            words = [job.words for job in batch]
            returns = slurm.launch(launcher, words) if self.slurm else launcher.launch(words, 0)
            for launched, returned in zip(batch, returns, strict=True):
                # None for a job that SLURM cancelled or lost: its folder has the status.
                launched.returned = returned and returned.return_value

        return launch
