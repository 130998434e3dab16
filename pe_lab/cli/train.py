"""From the command line's overrides to runs, through Hydra.

Every job of the line is composed and checked before the first one begins; an error is one
sentence. torch is imported only once a configuration is there to check.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from hydra import main as hydra_main
from omegaconf import DictConfig

from pe_lab.config.compose import CONFIG_PATH, compose, keys_of, run_composed
from pe_lab.config.hydra_internals import get_args_parser
from pe_lab.config.overrides import ALL_GROUPS, as_typed
from pe_lab.config.schema import CONFIG_KEYS, Config, plain, register_resolvers
from pe_lab.core.console import logger
from pe_lab.core.errors import UsageError
from pe_lab.core.files import check_writable
from pe_lab.core.options import Options
from pe_lab.core.suggest import similar
from pe_lab.sweeps.launchers import register_choices

if TYPE_CHECKING:
    from pe_lab.core.task import Task
    from pe_lab.train.plan import Plan

SWEEP_ONLY = ("hydra/launcher=", "hydra/sweeper=")
"""The overrides that only a sweep uses."""


def register() -> None:
    register_resolvers()
    register_choices()


def launch(words: Sequence[str]) -> None:
    """Train the runs of a command line.

    Raises:
        PeLabError, Interrupted: a run failed or was stopped; in a sweep, after the table of all
            jobs.
    """
    register()
    args = arguments(words)
    if args.hydra_help or args.info:
        return _hydra(args)
    if args.cfg:
        compose(args)
        return _hydra(args)
    jobs, plans = planned(args)
    if args.multirun:
        from pe_lab.sweeps.sweep import multirun

        return multirun(args, jobs, plans)
    (cfg,), (plan,) = jobs, plans
    return run_composed(args, cfg, lambda: _run(cfg, plan))


def planned(args: Any) -> tuple[list[DictConfig], "list[Plan]"]:
    """The composed configuration and the plan of every job, checked; their folder can be
    written."""
    jobs = compose(args)
    # After composing, which names an unknown launcher.
    ignored = [word for word in args.overrides if word.startswith(SWEEP_ONLY)]
    if ignored and not args.multirun:
        raise UsageError(f"{ignored[0]} has no effect on one run: add -m, or leave it out")
    plans = [_plan(cfg) for cfg in jobs]
    for runs_dir in {plan.config.runs_dir for plan in plans}:
        check_writable(runs_dir)
    return jobs, plans


def checked_jobs(words: Sequence[str]) -> list[Config]:
    """The checked configuration of every job; raises what ``launch`` would."""
    register()
    return [_plan(cfg).config for cfg in compose(arguments(words))]


def checked(words: Sequence[str]) -> Config:
    """The checked configuration of one run, which is not planned: its parts may not fit."""
    from pe_lab.config.check import check_composed

    register()
    (cfg,) = compose(arguments(words))
    return check_composed(cfg)


def checked_beside(options: Options, config_dir: str | None) -> Config:
    """The checked configuration of a run, from the words that are not the command's options.

    Raises:
        UsageError: what ``checked`` raises; for a key that neither has, with the keys of both.
    """
    flags = [] if config_dir is None else ["--config-dir", config_dir]
    of_run = sorted(CONFIG_KEYS)
    known = {*of_run, *ALL_GROUPS}
    unknown = {key: v for key, v in options.others.items() if key.isidentifier()}
    unknown = {key: v for key, v in unknown.items() if key not in known}
    others = {key: v for key, v in options.others.items() if key not in unknown}
    config = checked([*flags, *(f"{key}={value}" for key, value in others.items())])
    for key, value in unknown.items():
        meant = similar(key, [*type(options).model_fields, *of_run], keys_of(plain(config)))
        listed = ", ".join(sorted(type(options).model_fields)) + f"; of a run: {', '.join(of_run)}"
        hint = f"did you mean {' or '.join(meant)}? (choices: {listed})"
        raise UsageError(
            f"{options.command} {key}={value}: neither {options.command} nor a run has this key: "
            + (hint if meant else f"choose from {listed}")
        )
    return config


def task_of(options: Options, config_dir: str | None) -> "tuple[Config, Task]":
    """The configuration and the task of a command that is about a task.

    Raises:
        UsageError: what ``checked_beside`` raises, or the words name no task.
    """
    config = checked_beside(options, config_dir)
    if not {"task", "experiment"} & options.others.keys():
        raise UsageError(
            f"{options.command} needs a task: give task=NAME, see pe-lab show task for the names"
        )
    # Imported here: torch takes a second.
    from pe_lab.train.plan import build_task

    return config, build_task(config.task)


def _plan(cfg: DictConfig) -> "Plan":
    from pe_lab.config.check import check_composed
    from pe_lab.experiment.origin import check_origin
    from pe_lab.train.plan import plan

    return check_origin(plan(check_composed(cfg)))


def _run(cfg: DictConfig, plan: "Plan") -> None:
    from pe_lab.experiment.run import run_and_print

    # A recipe is a sweep; this is one of its runs.
    if params := cfg.hydra.sweeper.get("params"):
        logger.info("one run of a recipe that varies %s: -m runs them all", ", ".join(params))
    run_and_print(plan, as_typed(cfg.hydra.overrides.task))


def _hydra(args: Any) -> None:
    """Flags of Hydra, which show something and run nothing."""
    # Hydra reads sys.argv and does not accept overrides with flags in between.
    sys.argv = [sys.argv[0], *args.flags, *args.overrides]
    # Makes Hydra raise the exceptions of a job instead of printing them and exiting.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    hydra_main(version_base="1.3", config_path=CONFIG_PATH, config_name="config")(_nothing)()


def _nothing(cfg: DictConfig) -> None:
    """The task function where nothing is run."""


def arguments(words: Sequence[str]) -> Any:
    """The words as Hydra's parser splits them, into overrides and flags."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        flag = message.removeprefix("unrecognized arguments: --").split()[0]
        if flag != message.split()[0]:
            key, _, value = flag.partition("=")
            message = f"--{flag} is not a flag, keys have no dashes ({key}={value or '..'})"
        raise UsageError(f"{message}: see pe-lab --hydra-help for the flags there are")

    parser.error = refuse  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(list(words))
    if args.multirun and args.cfg:
        raise UsageError("--cfg shows one job, -m runs many: give the line without one of them")
    if args.resolve and not args.cfg:
        raise UsageError("--resolve goes with --cfg: add --cfg job, or leave --resolve out")
    for flag in ("config_name", "config_path", "experimental_rerun"):
        if getattr(args, flag) is not None:
            raise UsageError(
                f"--{flag.replace('_', '-')} {getattr(args, flag)} is not used here: give "
                "key=value, or --config-dir FOLDER with your yamls"
            )
    args.flags = [word for word in words if word not in args.overrides]
    return args
