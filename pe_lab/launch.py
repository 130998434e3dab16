"""From the command line's overrides to runs, through Hydra.

Every job of the line is composed and checked before the first one begins, and whatever is wrong
with it becomes one sentence. torch is imported only once a configuration is there to check.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra import main as hydra_main
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab.compose import CONFIG, GROUPS, as_given, compose, unresolved
from pe_lab.config import Config, register_resolvers
from pe_lab.errors import PeLabError, UsageError
from pe_lab.parts import fill_parts
from pe_lab.runs import check_writable

logger = logging.getLogger("pe_lab")


def launch(words: Sequence[str]) -> None:
    """Train what the words ask for.

    Raises:
        PeLabError, Interrupted: why not; of several failed jobs, a count after each was told.
    """
    register_resolvers()
    args = _arguments(words)
    os.environ["PE_LAB_PID"] = str(os.getpid())
    if args.shell_completion or args.hydra_help or args.info:
        return _hydra(_job, args)
    jobs = compose(args)
    if args.cfg:
        return _hydra(_job, args)
    for runs_dir in {_check(cfg).runs_dir for cfg in jobs}:
        check_writable(runs_dir)
    failures: list[Exception] = []
    if args.multirun:
        try:
            _hydra(_sweep_job(failures), args)
        except PeLabError as error:
            failed = len(failures) or "some"
            raise PeLabError(f"{failed} of {len(jobs)} jobs failed, each is told above") from error
        return None
    _hydra(_lone_job(failures), args)
    for failure in failures:
        raise failure
    return None


def _arguments(words: Sequence[str]) -> Any:
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
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


def _job(cfg: DictConfig) -> None:
    from pe_lab.job import run

    chosen = HydraConfig.get()
    sweep = Path(chosen.sweep.dir).name if chosen.mode == RunMode.MULTIRUN else None
    names = _names(chosen.runtime.choices)
    run(_checked(cfg, names, chosen.runtime.config_sources), as_given(chosen.overrides.task), sweep)


def _lone_job(failures: list[Exception]) -> Callable[[DictConfig], None]:
    """A job whose failure we tell ourselves, in one sentence: Hydra would add a line to it."""

    def job(cfg: DictConfig) -> None:
        try:
            _job(cfg)
        except Exception as error:
            failures.append(error)

    return job


def _sweep_job(failures: list[Exception]) -> Callable[[DictConfig], None]:
    """A job that tells its failure when it happens and fails the sweep with it, so that every
    launcher knows; the other jobs go on."""

    def job(cfg: DictConfig) -> None:
        try:
            _job(cfg)
        except Exception as error:
            words = as_given(HydraConfig.get().overrides.task)
            logger.error("failed: pe-lab %s: %s", " ".join(words), error)
            failures.append(error)
            raise PeLabError(str(error)) from error

    return job


def _names(choices: Any) -> dict[str, str]:
    return {group: str(choices[group]) for group in GROUPS if choices.get(group) is not None}


def _checked(cfg: DictConfig, names: dict[str, str], sources: Sequence[Any]) -> Config:
    from pe_lab.schema import check

    cfg = fill_parts(cfg, sources)
    try:
        resolved = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise UsageError(unresolved(cfg, error)) from None
    assert isinstance(resolved, dict)
    return check({str(key): value for key, value in resolved.items()}, names)


def _check(cfg: DictConfig) -> Config:
    """Whatever can be known to be wrong with a job before any work is done."""
    from pe_lab.build import plan

    names = _names(cfg.hydra.runtime.choices)
    ours = {str(key): value for key, value in cfg.items_ex(resolve=False) if key != "hydra"}
    config = _checked(OmegaConf.create(ours), names, cfg.hydra.runtime.config_sources)
    plan(config)
    return config
