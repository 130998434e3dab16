"""From the command line's words to one configuration a job; what is wrong with them is told."""

import re
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean
from pe_lab.config.compose_all import compose_all
from pe_lab.config.overrides import (
    GROUPS,
    OPEN_ENDED,
    as_given,
    check_override,
    check_words,
    replacing,
)

CONFIG = "pkg://pe_lab.conf"


def opened(args: Any) -> Hydra:
    """Hydra over our configuration and the folder that the line adds; GlobalHydra holds it."""
    search_path = create_config_search_path(CONFIG)
    if args.config_dir is not None:
        folder = Path(args.config_dir).absolute()
        if not folder.is_dir():
            raise UsageError(
                f"--config-dir {args.config_dir} is no folder: give the one that holds "
                "your pe/ or task/ yamls"
            )
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return Hydra.create_main_hydra2("pe-lab", search_path)


def compose(args: Any) -> list[DictConfig]:
    """The configuration of every job that the line asks for; ``args.overrides`` become what
    Hydra needs to make the same."""
    hydra = opened(args)
    try:
        parser = OverridesParser.create(config_loader=hydra.config_loader)
        check_words(parser, args.overrides)
        args.overrides = replacing(args.overrides)
        if args.multirun:
            args.overrides = _with_params(hydra, parser, args.overrides)
        overrides = parser.parse_overrides(args.overrides)
        return compose_all(hydra, parser, _jobs(overrides, args.multirun), _compose_job)
    except UnicodeDecodeError as error:
        raise UsageError(_undecodable(args.config_dir, error)) from None
    finally:
        GlobalHydra.instance().clear()


def _with_params(hydra: Hydra, parser: OverridesParser, words: list[str]) -> list[str]:
    """The words with what the yamls sweep (``hydra.sweeper.params``) before them; a key that is
    among the words is left to them. A recipe's sweep is a table and no space to search in: a
    sweeper that searches gets the recipe as it is without -m."""
    overrides = parser.parse_overrides(words)
    given = {override.key_or_group for override in overrides}
    recipe = next((o for o in overrides if o.key_or_group == "experiment"), None)
    others = [word for word in words if recipe is None or word != recipe.input_line]
    if recipe is not None and recipe.is_discrete_sweep():
        for name in map(str, recipe.sweep_iterator()):
            swept, _ = _params(hydra, [*others, f"experiment={name}"])
            if left := [key for key in swept if key not in given]:
                raise UsageError(
                    f"{recipe.input_line} names several recipes and {name} varies "
                    f"{', '.join(left)}: give each recipe a line of its own, or give these keys"
                )
    swept, every = _params(hydra, words)
    wanted = swept if every else _params(hydra, others)[0]
    if not swept or (wanted == swept and not every):
        return words
    added = [f"{key}={value}" for key, value in wanted.items() if key not in given]
    for word in added:
        try:
            (override,) = parser.parse_overrides([word])
        except HydraException:
            raise UsageError(
                f"hydra.sweeper.params: {word} is not understood: list values like A,B"
            ) from None
        check_override(override)
    return ["hydra.sweeper.params=null", *added, *words]


def _params(hydra: Hydra, words: list[str]) -> tuple[dict[str, str], bool]:
    """What the yamls sweep with these words, and whether every combination of it is run."""
    cfg = _compose_job(hydra, words, RunMode.MULTIRUN)
    params = dict(cfg.hydra.sweeper.get("params") or {})
    return params, cfg.hydra.runtime.choices["hydra/sweeper"] == "basic"


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
    drawn = next((o for o in overrides if o.is_interval_sweep()), None)
    if drawn is not None:
        if not any(o.key_or_group == "hydra/sweeper" and o.value() != "basic" for o in overrides):
            raise UsageError(
                f"{drawn.input_line} has no end of values: list them (A,B), or choose a sweeper "
                "that searches (hydra/sweeper=NAME)"
            )
        # A search draws its values while it runs; only what is fixed can be checked before.
        return [[o.input_line or "" for o in overrides if not o.is_sweep_override()]]
    return [job for batch in BasicSweeper.split_arguments(overrides, None) for job in batch]


def _compose_job(hydra: Hydra, overrides: list[str], mode: RunMode = RunMode.RUN) -> DictConfig:
    try:
        return hydra.compose_config("config", overrides, mode, with_log_configuration=False)
    except MissingConfigException as error:
        raise UsageError(_missing(hydra, error)) from None
    except yaml.YAMLError as error:
        raise UsageError(_broken_yaml(error)) from None
    except UnicodeDecodeError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UsageError(_refused(hydra, overrides, error)) from None


def _missing(hydra: Hydra, error: MissingConfigException) -> str:
    if not error.missing_cfg_file:
        return _first_line(error)
    group, _, name = str(error.missing_cfg_file).partition("/")
    if group not in GROUPS:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
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
        return f"{getattr(error, 'name', 'a yaml file')} is no valid yaml: {_first_line(error)}"
    problem = getattr(error, "problem", None) or "it cannot be read"
    return (
        f"{mark.name} is no valid yaml at line {mark.line + 1}, column {mark.column + 1}: {problem}"
    )


def _undecodable(folder: str | None, error: UnicodeDecodeError) -> str:
    for path in sorted(Path(folder or ".").rglob("*.y*ml")):
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            return f"{path} is no text ({error.reason}): write it in UTF-8"
    return f"a yaml file is no text ({error.reason}): write it in UTF-8"


def _refused(hydra: Hydra, overrides: list[str], error: Exception) -> str:
    found = re.match(
        r"Could not (?:override|delete from config\.|append to config\.) '([^']+)'", str(error)
    )
    unfit = re.match(r"Error merging override ([^\n]+)", str(error))
    if unfit is not None:
        return f"{unfit[1]} is of another kind than what it replaces: see pe-lab --cfg job"
    if found is None:
        return " ".join(str(error).split("\n")[:2])
    key = found[1]
    named = [word for word in overrides if word.partition("=")[0].lstrip("~+") == key]
    given = (as_given(named) or named or [key])[0]
    others = [word for word in overrides if word not in named]
    parent, _, last = key.rpartition(".")
    if parent in OPEN_ENDED:
        return f"{given} is a new key of {parent}: write +{given.lstrip('+')}"
    try:
        config = hydra.compose_config("config", others, RunMode.RUN, with_log_configuration=False)
    except HydraException:
        return f"{given} is no key of the configuration: see pe-lab --cfg job for the keys"
    section = OmegaConf.select(config, parent) if parent else config
    if not isinstance(section, DictConfig):
        return f"{given}: there is no {parent} to hold it; see pe-lab --cfg job"
    known = [str(name) for name in section if str(name) not in ("hydra", "_target_")]
    return f"{given} is no key of {parent or 'the configuration'}: " + did_you_mean(last, known)


def unresolved(cfg: DictConfig, error: OmegaConfBaseException) -> str:
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    for part in re.findall(r"[^.\[\]]+", str(error.full_key)):
        raw = raw[int(part)] if isinstance(raw, list) else raw[part]
    reason = _first_line(error).rpartition("resolving interpolation: ")[2]
    return f"{error.full_key}={raw} has no value ({reason}): correct the keys that it is made from"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".:")
