"""From the command line's overrides to runs, through Hydra.

Every job of the line is composed and checked before the first one begins, and whatever is wrong
with it becomes one sentence. torch is imported only once a configuration is there to check.
"""

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra import main as hydra_main
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab.config import Config, register_resolvers
from pe_lab.errors import PeLabError, UsageError
from pe_lab.runs import check_writable
from pe_lab.suggest import did_you_mean

CONFIG = "pkg://pe_lab.conf"
GROUPS = ("task", "pe", "positions", "model", "train", "preset", "tracker", "experiment")

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
        return _hydra(_job)
    jobs = _compose(args)
    if args.cfg:
        return _hydra(_job)
    for runs_dir in {_check(cfg).runs_dir for cfg in jobs}:
        check_writable(runs_dir)
    failures: list[Exception] = []
    if args.multirun:
        try:
            _hydra(_sweep_job(failures))
        except PeLabError as error:
            failed = len(failures) or "some"
            raise PeLabError(f"{failed} of {len(jobs)} jobs failed, each is told above") from error
        return None
    _hydra(_lone_job(failures))
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
    # Hydra reads sys.argv, and only takes overrides that stand together.
    flags = [word for word in words if word not in args.overrides]
    sys.argv = [sys.argv[0], *flags, *args.overrides]
    return args


def _hydra(job: Callable[[DictConfig], Any]) -> None:
    # Hydra prints what a job raises and exits; with this set it lets us do both.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    hydra_main(version_base="1.3", config_path=CONFIG, config_name="config")(job)()


def _job(cfg: DictConfig) -> None:
    from pe_lab.job import run

    chosen = HydraConfig.get()
    sweep = Path(chosen.sweep.dir).name if chosen.mode == RunMode.MULTIRUN else None
    names = _names(chosen.runtime.choices)
    run(_checked(cfg, names), list(chosen.overrides.task), sweep)


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
            logger.error("failed: pe-lab %s: %s", " ".join(HydraConfig.get().overrides.task), error)
            failures.append(error)
            raise PeLabError(str(error)) from error

    return job


def _names(choices: Any) -> dict[str, str]:
    return {group: str(choices[group]) for group in GROUPS if choices.get(group) is not None}


def _checked(cfg: DictConfig, names: dict[str, str]) -> Config:
    from pe_lab.build import check

    try:
        resolved = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise UsageError(_unresolved(cfg, error)) from None
    assert isinstance(resolved, dict)
    return check({str(key): value for key, value in resolved.items()}, names)


def _check(cfg: DictConfig) -> Config:
    """Whatever can be known to be wrong with a job before any work is done."""
    from pe_lab.build import plan

    names = _names(cfg.hydra.runtime.choices)
    ours = {str(key): value for key, value in cfg.items_ex(resolve=False) if key != "hydra"}
    config = _checked(OmegaConf.create(ours), names)
    plan(config)
    return config


def _compose(args: Any) -> list[DictConfig]:
    """The configuration of every job that the line asks for."""
    search_path = create_config_search_path(CONFIG)
    if args.config_dir is not None:
        folder = Path(args.config_dir).absolute()
        if not folder.is_dir():
            raise UsageError(
                f"--config-dir {args.config_dir} is no folder: give the one that holds "
                "your pe/ or task/ yamls"
            )
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    hydra = Hydra.create_main_hydra2("pe-lab", search_path)
    try:
        parser = OverridesParser.create(config_loader=hydra.config_loader)
        overrides = _parse(parser, args.overrides)
        return [_compose_job(hydra, job) for job in _jobs(overrides, args.multirun)]
    finally:
        GlobalHydra.instance().clear()


def _parse(parser: OverridesParser, words: list[str]) -> list[Override]:
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise UsageError(
                f"{word} is no command and no key=value: see pe-lab --help for what there is"
            )
    try:
        overrides = parser.parse_overrides(words)
    except HydraException as error:
        raise UsageError(f"{_first_line(error)}: quote values with special characters") from None
    for override in overrides:
        key, value = override.get_key_element().lstrip("+"), override.value()
        # Hydra takes lists and numbers here and fails over them where no sentence can be made.
        named = isinstance(value, str) or override.is_sweep_override() or override.is_delete()
        if key in ("", *GROUPS) and not named:
            raise UsageError(
                f"{override.input_line} names no file: give key=NAME, see pe-lab list for the names"
            )
    counts = Counter(override.get_key_element().lstrip("+") for override in overrides)
    for key, count in counts.items():
        if count > 1:
            twice = [o.input_line for o in overrides if o.get_key_element().lstrip("+") == key]
            raise UsageError(
                f"{key} is given {count} times ({', '.join(map(str, twice))}): keep one "
                f"(several values in one sweep: -m {key}=A,B)"
            )
    return overrides


def _jobs(overrides: list[Override], multirun: bool) -> list[list[str]]:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    lines = [o.input_line or "" for o in overrides]
    if not multirun:
        swept = next((o for o in overrides if o.is_sweep_override()), None)
        if swept is not None:
            raise UsageError(
                f"{swept.input_line} names several values: add -m to run them all, "
                "or keep one of them"
            )
        return [lines]
    if any(o.is_sweep_override() and not o.is_discrete_sweep() for o in overrides):
        # A search draws its values while it runs; only what is fixed can be checked before.
        return [[o.input_line or "" for o in overrides if not o.is_sweep_override()]]
    return [job for batch in BasicSweeper.split_arguments(overrides, None) for job in batch]


def _compose_job(hydra: Hydra, overrides: list[str]) -> DictConfig:
    try:
        return hydra.compose_config(
            "config", overrides, run_mode=RunMode.RUN, with_log_configuration=False
        )
    except MissingConfigException as error:
        raise UsageError(_missing(hydra, error)) from None
    except yaml.YAMLError as error:
        raise UsageError(_broken_yaml(error)) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UsageError(_refused(hydra, overrides, error)) from None


def _missing(hydra: Hydra, error: MissingConfigException) -> str:
    if not error.missing_cfg_file:
        return _first_line(error)
    group, _, name = str(error.missing_cfg_file).partition("/")
    return f"{group}={name} is not there: " + did_you_mean(name, _options(hydra, group))


def _options(hydra: Hydra, group: str) -> list[str]:
    """Every choice of a group, those in folders below it too."""
    options = hydra.config_loader.get_group_options(group, ObjectType.CONFIG)
    for folder in hydra.config_loader.get_group_options(group, ObjectType.GROUP):
        options += [f"{folder}/{name}" for name in _options(hydra, f"{group}/{folder}")]
    return options


def _broken_yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"a yaml file is broken: {_first_line(error)}"
    problem = getattr(error, "problem", None) or "it cannot be read"
    return (
        f"{mark.name} is no valid yaml at line {mark.line + 1}, column {mark.column + 1}: {problem}"
    )


def _refused(hydra: Hydra, overrides: list[str], error: Exception) -> str:
    found = re.match(r"Could not override '([^']+)'", str(error))
    if found is None:
        return " ".join(str(error).split("\n")[:2])
    key = found[1]
    given = next((word for word in overrides if word.startswith(f"{key}=")), key)
    others = [word for word in overrides if word != given]
    parent, _, last = key.rpartition(".")
    try:
        config = hydra.compose_config("config", others, RunMode.RUN, with_log_configuration=False)
    except HydraException:
        return f"{given} is no key of the configuration: see pe-lab --cfg job for the keys"
    section = OmegaConf.select(config, parent) if parent else config
    if not isinstance(section, DictConfig):
        return f"{given}: there is no {parent} to hold it; see pe-lab --cfg job"
    known = [str(name) for name in section if str(name) not in ("hydra", "_target_")]
    return f"{given} is no key of {parent or 'the configuration'}: " + did_you_mean(last, known)


def _unresolved(cfg: DictConfig, error: OmegaConfBaseException) -> str:
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    for part in str(error.full_key).split("."):
        raw = raw[part]
    reason = _first_line(error).rpartition("resolving interpolation: ")[2]
    return f"{error.full_key}={raw} has no value ({reason}): correct the keys that it is made from"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".:")
