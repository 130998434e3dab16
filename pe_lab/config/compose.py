"""From the command line's overrides to one composed configuration per job.

Errors of Hydra become one sentence with key, value and remedy.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import configure_log, run_job
from hydra.errors import HydraException, MissingConfigException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pe_lab.config.choices import CHOICES
from pe_lab.config.hf_config import expanded
from pe_lab.config.hydra_internals import (
    BasicSweeper,
    Callbacks,
    ConfigLoaderImpl,
    Hydra,
    create_config_search_path,
)
from pe_lab.config.overrides import (
    ALL_GROUPS,
    OPEN_ENDED,
    as_typed,
    check_override,
    check_words,
    replace_mappings,
)
from pe_lab.config.schema import WORDS, as_composed
from pe_lab.core.config_dir import check_config_dir, plugins
from pe_lab.core.errors import UsageError
from pe_lab.core.suggest import did_you_mean

CONFIG_PATH = "pkg://pe_lab.conf"


def open_hydra(args: Any) -> Hydra:
    """Hydra with our configuration, the folder of ``--config-dir`` and those of installed packages,
    set as GlobalHydra."""
    search_path = create_config_search_path(CONFIG_PATH)
    if args.config_dir is not None:
        check_config_dir(args.config_dir)
        folder = Path(args.config_dir).absolute()
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    for folder in plugins():
        search_path.prepend("plugin", f"file://{folder}", SearchPathQuery(provider="schema"))
    return Hydra.create_main_hydra2("pe-lab", search_path)


def compose(args: Any) -> list[DictConfig]:
    """The configuration of every job of the command line.

    ``args.overrides`` are replaced by words from which Hydra composes the same.
    """
    args.overrides = expanded(args.overrides)
    hydra = open_hydra(args)
    try:
        parser = OverridesParser.create(config_loader=hydra.config_loader)
        check_words(parser, args.overrides)
        args.overrides = replace_mappings(args.overrides)
        if args.multirun:
            args.overrides = _with_params(hydra, parser, args.overrides)
        overrides = parser.parse_overrides(args.overrides)
        check_presets(hydra, overrides)
        return _compose_jobs(hydra, parser, _jobs(overrides, args.multirun))
    except UnicodeDecodeError as error:
        raise UsageError(not_text(args.config_dir, error)) from None
    finally:
        GlobalHydra.instance().clear()


def run_composed(args: Any, cfg: DictConfig, task: Callable[[], object]) -> None:
    """Call ``task`` as Hydra calls a single job: with logging, callbacks and ``HydraConfig``.

    Exceptions of the task are raised here: Hydra would print more than one sentence.
    """
    failures: list[Exception] = []

    def job(cfg: DictConfig) -> None:
        try:
            task()
        except Exception as error:
            failures.append(error)

    hydra = open_hydra(args)
    try:
        configure_log(cfg.hydra.hydra_logging, cfg.hydra.verbose)
        callbacks = Callbacks(cfg)
        callbacks.on_run_start(config=cfg, config_name="config")
        returned = run_job(
            hydra_context=HydraContext(config_loader=hydra.config_loader, callbacks=callbacks),
            task_function=job,
            config=cfg,
            job_dir_key="hydra.run.dir",
            job_subdir_key=None,
        )
        callbacks.on_run_end(config=cfg, config_name="config", job_return=returned)
    finally:
        GlobalHydra.instance().clear()
    for failure in failures:
        raise failure


def _compose_jobs(
    hydra: Hydra, parser: OverridesParser, jobs: Iterable[list[str]]
) -> list[DictConfig]:
    """The configuration of each job.

    Composing reads and merges some twenty files, so it is done once for each choice of files; the
    other keys are set in a copy, in Hydra's order.
    """
    bases: dict[tuple[str, ...], DictConfig] = {}
    composed = []
    for words in jobs:
        overrides = parser.parse_overrides(words)
        values = [o for o in overrides if not _chooses_a_file(hydra, o)]
        files = tuple(w for w, o in zip(words, overrides, strict=True) if o not in values)
        try:
            if files not in bases:
                bases[files] = _compose_job(hydra, list(files))
            cfg = deepcopy(bases[files])
            ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
        except (HydraException, OmegaConfBaseException, ValueError):
            # The error of a whole composition names the wrong override.
            cfg = _compose_job(hydra, words)
        with open_dict(cfg.hydra):
            cfg.hydra.overrides.hydra = [o.input_line for o in overrides if o.is_hydra_override()]
            cfg.hydra.overrides.task = [
                o.input_line for o in overrides if not o.is_hydra_override()
            ]
        composed.append(cfg)
    return composed


def _chooses_a_file(hydra: Hydra, override: Override) -> bool:
    exists: bool = hydra.config_loader.repository.group_exists(override.key_or_group)  # type: ignore[attr-defined]
    return exists and not isinstance(override.value(), dict)


def _compose_job(hydra: Hydra, words: list[str], mode: RunMode = RunMode.RUN) -> DictConfig:
    try:
        return hydra.compose_config("config", words, mode, with_log_configuration=False)
    except MissingConfigException as error:
        raise UsageError(missing(hydra, error)) from None
    except yaml.YAMLError as error:
        raise UsageError(broken_yaml(error)) from None
    except UnicodeDecodeError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UsageError(refused(hydra, words, error)) from None


def _with_params(hydra: Hydra, parser: OverridesParser, words: list[str]) -> list[str]:
    """The words, preceded by the sweep of the yamls (``hydra.sweeper.params``) for other
    keys."""
    overrides = parser.parse_overrides(words)
    keys = {override.key_or_group for override in overrides}
    recipe = next((o for o in overrides if o.key_or_group == "experiment"), None)
    others = [word for word in words if recipe is None or word != recipe.input_line]
    if recipe is not None and recipe.is_discrete_sweep():
        for name in map(str, recipe.sweep_iterator()):
            params = _params(hydra, [*others, f"experiment={name}"])
            if left := [key for key in params if key not in keys]:
                raise UsageError(
                    f"{recipe.input_line} names several recipes and {name} varies "
                    f"{', '.join(left)}: run each recipe by itself, or give these keys"
                )
    swept = _params(hydra, words)
    if not swept:
        return words
    added = [
        as_composed(f"{key}={value}")
        for key, value in swept.items()
        if WORDS.get(key, key) not in keys
    ]
    for word in added:
        try:
            (override,) = parser.parse_overrides([word])
        except HydraException:
            raise UsageError(
                f"hydra.sweeper.params: {word} is not understood: list values like A,B"
            ) from None
        check_override(override)
    return ["hydra.sweeper.params=null", *added, *words]


def _params(hydra: Hydra, words: list[str]) -> dict[str, str]:
    """The sweep of the yamls with these words; UsageError for a sweeper of another package."""
    cfg = _compose_job(hydra, words, RunMode.MULTIRUN)
    if (sweeper := cfg.hydra.runtime.choices["hydra/sweeper"]) != "basic":
        raise UsageError(
            f"hydra/sweeper={sweeper} is not allowed, as a sweep runs every combination of the "
            "listed values: leave it out"
        )
    return dict(cfg.hydra.sweeper.get("params") or {})


def _jobs(overrides: Sequence[Override], multirun: bool) -> list[list[str]]:
    """The words of each job."""
    if not multirun:
        swept = next((o for o in overrides if o.is_sweep_override()), None)
        if swept is not None:
            raise UsageError(
                f"{swept.input_line} names several values: add -m to run them all, "
                "or keep one of them"
            )
        return [[o.input_line or "" for o in overrides]]
    interval = next((o for o in overrides if o.is_interval_sweep()), None)
    if interval is not None:
        raise UsageError(f"{interval.input_line} has no end of values: list them (A,B)")
    batches = BasicSweeper.split_arguments(list(overrides), None)
    return [job for batch in batches for job in batch]


def missing(hydra: Hydra, error: MissingConfigException) -> str:
    """For an option that its group does not have."""
    if not error.missing_cfg_file:
        return _first_line(error)
    file = str(error.missing_cfg_file)
    # The longest, as one group may lie in the folder of another.
    found = [group for group in ALL_GROUPS if file.startswith(f"{group}/")]
    group = max(found, key=len, default=file.rpartition("/")[0])
    name = file.removeprefix(f"{group}/")
    meant = did_you_mean(name, options_of(hydra, group))
    path = hydra.config_loader.get_search_path().get_path()
    if group in CHOICES and all(part.provider != "command-line" for part in path):
        meant += "; for one of yours give --config-dir FOLDER"
    return f"unknown {NOUNS.get(group, group)} {group}={name}: {meant}"


def check_presets(hydra: Hydra, overrides: Iterable[Override]) -> None:
    """Refuse presets that are not there: Hydra skips an optional file without a word."""
    for override in overrides:
        if override.key_or_group != "preset" or override.is_delete():
            continue
        names = override.sweep_iterator() if override.is_discrete_sweep() else [override.value()]
        options = hydra.config_loader.get_group_options("preset", ObjectType.CONFIG)
        for name in names:
            if name is not None and str(name) not in options:
                raise UsageError(f"unknown preset={name}: " + did_you_mean(str(name), options))


NOUNS = {
    "pe": "encoding",
    "experiment": "recipe",
    "train/optimizer": "optimizer",
    **dict.fromkeys(("positions", "train", "tracker", "preset"), "option"),
    "hydra/launcher": "launcher",
    "hydra/sweeper": "sweeper",
}
"""Names for the options of a group, where they differ from the group's."""


def options_of(hydra: Hydra, group: str) -> list[str]:
    """Every option of a group, with those in its folders unless these are groups themselves."""
    options = hydra.config_loader.get_group_options(group, ObjectType.CONFIG)
    for folder in hydra.config_loader.get_group_options(group, ObjectType.GROUP):
        if f"{group}/{folder}" not in ALL_GROUPS:
            options += [f"{folder}/{name}" for name in options_of(hydra, f"{group}/{folder}")]
    return options


def broken_yaml(error: yaml.YAMLError) -> str:
    """For a file that is not valid YAML."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{getattr(error, 'name', 'a yaml file')} is not valid YAML: {_first_line(error)}"
    problem = getattr(error, "problem", None) or "it cannot be read"
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    return f"{mark.name} is not valid YAML at {place}: {problem}"


def not_text(folder: str | None, error: UnicodeDecodeError) -> str:
    """For a file that is not UTF-8."""
    for path in sorted(Path(folder or ".").rglob("*.y*ml")):
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            return f"{path} is not text ({error.reason}): write it in UTF-8"
    return f"a yaml file is not text ({error.reason}): write it in UTF-8"


def refused(hydra: Hydra, words: list[str], error: Exception) -> str:
    """For an override that does not fit the configuration."""
    found = re.match(
        r"Could not (?:override|delete from config\.|append to config\.) '([^']+)'", str(error)
    )
    unfit = re.match(r"Error merging override ([^\n]+)", str(error))
    if unfit is not None:
        return f"{unfit[1]} has another type than the value it replaces: see pe-lab --cfg job"
    if found is None:
        return " ".join(str(error).split("\n")[:2])
    key = found[1]
    named = [word for word in words if word.partition("=")[0].lstrip("~+") == key]
    word = (as_typed(named) or named or [key])[0]
    others = [word for word in words if word not in named]
    parent = key.rpartition(".")[0]
    if parent in OPEN_ENDED:
        return f"{word} is a new key of {parent}: write +{word.lstrip('+')}"
    try:
        config = hydra.compose_config("config", others, RunMode.RUN, with_log_configuration=False)
    except HydraException:
        return f"{word} is not a key of the configuration: see pe-lab --cfg job for the keys"
    plain: Any = OmegaConf.to_container(config, resolve=False)
    section: Any = OmegaConf.select(config, parent) if parent else plain
    siblings = [str(name) for name in section] if isinstance(section, Mapping | DictConfig) else []
    siblings = [name for name in siblings if name not in ("hydra", "_target_")]
    return unknown_key(word, key, plain, siblings)


def unresolved(cfg: DictConfig, error: OmegaConfBaseException) -> str:
    """For an interpolation that has no value."""
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    for part in re.findall(r"[^.\[\]]+", str(error.full_key)):
        raw = raw[int(part)] if isinstance(raw, list) else raw[part]
    reason = _first_line(error).rpartition("resolving interpolation: ")[2]
    return f"{error.full_key}={raw} has no value ({reason}): correct the keys that it is made from"


def unknown_key(word: str, key: str, config: Mapping[str, Any], siblings: Sequence[str]) -> str:
    """For an override of a key that the configuration does not have.

    Args:
        word: the override as written.
        config: the configuration without it.
        siblings: the keys that the key's parent has.
    """
    parent, _, last = key.rpartition(".")
    within = parent if parent.partition(".")[0] in config else ""
    refused = f"{word} is not a key of {within or 'the configuration'}"
    if last == "length" and parent in ("", "task") and (found := _of_length(config)):
        listed = f" (choices: {', '.join(sorted(siblings))})" if siblings else ""
        return f"{refused}: did you mean {' or '.join(found)}?{listed}"
    groups = [*ALL_GROUPS, "hydra/launcher", "hydra/sweeper"] if "/" in key else []
    return f"{refused}: {did_you_mean(key, groups or siblings, keys=keys_of(config))}"


def _of_length(config: Mapping[str, Any]) -> list[str]:
    """The keys that set the length of a task without a key ``length``: those that its splits
    long_x2, .. change."""
    task = config.get("task") or {}
    if "length" in task:
        return []
    longer = [task["splits"][name] for name in task.get("splits") or {} if name.startswith("long_")]
    return list(dict.fromkeys(f"task.{key}" for changes in longer for key in changes))


def keys_of(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys of all values but mappings."""
    found = []
    for name, value in config.items():
        if name not in ("hydra", "_target_"):
            key = f"{prefix}{name}"
            found += keys_of(value, f"{key}.") if isinstance(value, Mapping) else [key]
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".:")
