"""Errors of Hydra while composing, as one sentence with key, value and remedy."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean
from pe_lab.config.choices import CHOICES
from pe_lab.config.hydra_internals import Hydra
from pe_lab.config.overrides import ALL_GROUPS, OPEN_ENDED, as_typed


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
