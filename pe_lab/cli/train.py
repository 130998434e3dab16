"""From the command line's overrides to runs, through Hydra.

Every job of the line is composed and checked before the first one begins, and whatever is wrong
with it becomes one sentence. torch is imported only once a configuration is there to check.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from hydra import main as hydra_main
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_lab.common.errors import UsageError
from pe_lab.config.check import checked, checked_job
from pe_lab.config.compose import CONFIG, compose
from pe_lab.config.overrides import as_given
from pe_lab.config.schema import Config, register_resolvers
from pe_lab.store.run_folder import check_writable
from pe_lab.sweeps.launchers import register_choices

if TYPE_CHECKING:
    from pe_lab.training.plan import Plan

logger = logging.getLogger("pe_lab")


def launch(words: Sequence[str]) -> None:
    """Train what the words ask for.

    Raises:
        PeLabError, Interrupted: why not; of several jobs, after a table of all.
    """
    register_resolvers()
    register_choices()
    args = _arguments(words)
    if args.shell_completion or args.hydra_help or args.info:
        return _hydra(_nothing, args)
    jobs = compose(args)
    if args.cfg:
        return _hydra(_nothing, args)
    plans = [_check(cfg) for cfg in jobs]
    for runs_dir in {plan.config.runs_dir for plan in plans}:
        check_writable(runs_dir)
    if args.multirun:
        from pe_lab.sweeps.multirun import multirun

        return multirun(args, jobs, plans)
    failures: list[Exception] = []
    _hydra(_lone_job(failures), args)
    for failure in failures:
        raise failure
    return None


def checked_jobs(words: Sequence[str]) -> list[Config]:
    """Every job of the line, checked and not begun; raises what ``launch`` would."""
    register_resolvers()
    register_choices()
    return [_check(cfg).config for cfg in compose(_arguments(words))]


def _arguments(words: Sequence[str]) -> Any:
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{message}: see pe-lab --hydra-help for the flags there are")

    parser.error = refuse  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(list(words))
    if args.multirun and args.cfg:
        raise UsageError("--cfg shows one job, -m runs many: give the line without one of them")
    ignored = [
        word for word in args.overrides if word.startswith(("hydra/launcher=", "hydra/sweeper="))
    ]
    if ignored and not args.multirun and not args.cfg:
        raise UsageError(f"{ignored[0]} has no effect on one run: add -m, or leave it out")
    if args.resolve and not args.cfg:
        raise UsageError("--resolve goes with --cfg: add --cfg job, or leave --resolve out")
    for flag in ("config_name", "config_path", "experimental_rerun"):
        if getattr(args, flag) is not None:
            raise UsageError(
                f"--{flag.replace('_', '-')} {getattr(args, flag)} is not used here: give "
                "key=value, or --config-dir FOLDER for yamls of your own"
            )
    args.flags = [word for word in words if word not in args.overrides]
    return args


def _hydra(job: Callable[[DictConfig], Any], args: Any) -> None:
    # Hydra reads sys.argv, and only takes overrides that stand together.
    sys.argv = [sys.argv[0], *args.flags, *args.overrides]
    # Hydra prints what a job raises and exits; with this set it lets us do both.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    hydra_main(version_base="1.3", config_path=CONFIG, config_name="config")(job)()


def _nothing(cfg: DictConfig) -> None:
    """The job of the flags that show something and run nothing."""


def _lone_job(failures: list[Exception]) -> Callable[[DictConfig], None]:
    """A job whose failure we tell ourselves, in one sentence: Hydra would add a line to it."""

    def job(cfg: DictConfig) -> None:
        # A recipe is a sweep; this is one of its runs.
        if swept := HydraConfig.get().sweeper.get("params"):
            logger.info("one run of a recipe that varies %s: -m runs them all", ", ".join(swept))
        try:
            from pe_lab.experiment.run import run_alone
            from pe_lab.training.plan import plan

            run_alone(plan(checked_job(cfg)), as_given(HydraConfig.get().overrides.task))
        except Exception as error:
            failures.append(error)

    return job


def _check(cfg: DictConfig) -> "Plan":
    """Whatever can be known to be wrong with a job before any work is done."""
    from pe_lab.training.plan import plan

    return plan(checked(cfg))
