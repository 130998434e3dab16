"""From the command line's overrides to runs.

Every job of the line is composed and checked before the first one begins. torch is imported only
once a configuration is there to check.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig

from pe_lab.config.compose import (
    ARGUMENTS,
    CommandLine,
    check_composed,
    compose,
    configure_log,
    to_hydra,
)
from pe_lab.config.schema import Config
from pe_lab.core.console import logger
from pe_lab.core.errors import UsageError

if TYPE_CHECKING:
    from pe_lab.train.plan import Plan


def launch(words: Sequence[str]) -> None:
    """Train the runs of a command line.

    Raises:
        PeLabError, Interrupted: a run failed or was stopped; in a sweep, after the table of all
            jobs.
    """
    line = CommandLine.parse(words)
    if line.shows:
        return show_by_hydra(line)
    if line.multirun:
        from pe_lab.sweeps.sweep import multirun

        multirun(line)
        return None
    # A user would take a run of this machine for one of the cluster.
    if launchers := [word for word in words if word.startswith("hydra/launcher=")]:
        raise UsageError(f"{launchers[0]} has no effect on one run: add -m, or leave it out")
    jobs, plans = planned(line)
    from pe_lab.experiment.run import run_and_print

    (cfg,), (plan,) = jobs, plans
    configure_log(cfg)
    # A recipe is a sweep; this is one of its runs.
    if params := cfg.hydra.sweeper.get("params"):
        logger.info("one run of a recipe that varies %s: -m runs them all", ", ".join(params))
    run_and_print(plan, list(cfg.hydra.overrides.task))
    return None


def planned(line: CommandLine) -> tuple[list[DictConfig], "list[Plan]"]:
    """The composed configuration and the plan of every job, checked."""
    # Imported here: torch takes a second.
    from pe_lab.experiment.load_run import check_origin
    from pe_lab.train.plan import make_plan

    jobs = compose(line)
    return jobs, [check_origin(make_plan(check_composed(cfg))) for cfg in jobs]


def checked(words: Sequence[str]) -> Config:
    """The checked configuration of one run, which is not planned: its parts may not fit."""
    (cfg,) = compose(CommandLine.parse(words))
    return check_composed(cfg)


def show_by_hydra(line: CommandLine) -> None:
    """Have Hydra print what its flags ask for; nothing is run."""
    if line.multirun:
        raise UsageError(f"{line.shows[0]} shows one job, and -m runs many: leave one of them out")
    # Its errors are sentences, and Hydra knows the launchers from then on.
    words = [] if "--shell-completion" in line.shows else line.words
    compose(CommandLine(words, config_dir=line.config_dir))
    folder = [] if line.config_dir is None else ["--config-dir", line.config_dir]
    # Hydra reads sys.argv, and has its own exceptions raised with this variable.
    sys.argv = [sys.argv[0], *line.shows, *folder, *to_hydra(line.words)]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    hydra.main("pkg://pe_lab.conf", "config", **ARGUMENTS["main"])(lambda _: None)()
