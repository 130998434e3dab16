"""From the words of the command line to one composed configuration for each job, by Hydra's public
API. Errors of Hydra become one sentence."""

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra.core import utils
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pe_lab.config.schema import Config, check
from pe_lab.core.config_dir import VARIABLE, choices, refuse_bare, use_config_dir
from pe_lab.core.errors import UsageError, check_known, did_you_mean, reason

GROUPS = (
    *("task", "pe", "positions", "model", "train", "tracker"),
    *("preset", "experiment", "train/optimizer"),
)
MAPPINGS = ("task.files", "task.splits", "model.layers")
"""Mappings with arbitrary keys. On the command line a mapping replaces that of the yaml."""
SEEDS = ("init", "data")
LAUNCHERS = {
    "basic": {"_target_": "pe_lab.sweeps.launchers.Joblib", "n_jobs": 1},
    "joblib": {"_target_": "pe_lab.sweeps.launchers.Joblib", "n_jobs": "${cores:${threads}}"},
}
"""Launchers whose names Hydra or a plugin registers: a yaml cannot replace these."""
ARGUMENTS: dict[str, dict[str, Any]] = (
    {"main": {"version_base": "1.3"}, "store": {}, "log": {}}
    if hydra.__version__.startswith("1.3.")
    else {
        "main": {},
        "store": {"replace": True},
        "log": {"execution_whitelist": ["pe_lab.core.console.log_handler"]},
    }
)
"""Arguments that functions of Hydra require before 1.4, and others from then on."""
REFUSED = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError)


@dataclass(frozen=True)
class CommandLine:
    """The words of a command line that trains.

    Args:
        words: overrides, key=value.
        shows: flags of Hydra that print something instead of training, such as ``--cfg job``.
    """

    words: list[str]
    multirun: bool = False
    config_dir: str | None = None
    shows: tuple[str, ...] = ()

    @classmethod
    def parse(cls, words: Iterable[str]) -> "CommandLine":
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("words", nargs="*")
        parser.add_argument("--multirun", "-m", action="store_true")
        parser.add_argument("--config-dir", "-cd", default=os.environ.get(VARIABLE) or None)
        for names in ("--cfg -c", "--package -p", "--info -i", "--shell-completion -sc"):
            parser.add_argument(*names.split())
        for name in ("--hydra-help", "--resolve"):
            parser.add_argument(name, action="store_true")

        def refuse(message: str) -> NoReturn:
            raise UsageError(f"{message}: keys have no dashes; pe-lab --hydra-help lists the flags")

        parser.error = refuse  # type: ignore[method-assign]
        given = vars(parser.parse_intermixed_args(list(words)))
        overrides, multirun, folder = (given.pop(k) for k in ("words", "multirun", "config_dir"))
        flags = [(f"--{key.replace('_', '-')}", value) for key, value in given.items() if value]
        shows = [word for pair in flags for word in pair if word is not True]
        return cls(overrides, multirun, folder, tuple(shows))


def compose(line: CommandLine) -> list[DictConfig]:
    """The configuration of every job of a command line, with Hydra's own keys.

    Raises:
        UsageError: a word cannot be parsed, or names a key, an option or a file that is not there.
    """
    with composing(line.config_dir) as composer:
        return [composer.job(words) for words in composer.lines(line)]


def configure_log(cfg: DictConfig, key: str = "job_logging") -> None:
    """Log as a composed job says: a run's log by ``job_logging``, Hydra's own by
    ``hydra_logging``."""
    utils.configure_log(cfg.hydra[key], cfg.hydra.verbose, **ARGUMENTS["log"])


@contextmanager
def composing(
    config_dir: str | None, bases: dict[tuple[str, ...], DictConfig] | None = None
) -> Iterator["Composer"]:
    """Hydra initialised with our yamls and those of ``--config-dir``.

    Args:
        bases: of an earlier composer of this process, which are not composed again.

    Raises:
        UsageError: anything inside that Hydra or OmegaConf refuses.
    """
    folder = use_config_dir(config_dir) if config_dir else None
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_module("pe_lab.conf", job_name="pe-lab", **ARGUMENTS["main"]):
            for name, node in LAUNCHERS.items():
                ConfigStore.instance().store(name, node, "hydra/launcher", **ARGUMENTS["store"])
            yield Composer(folder, {} if bases is None else bases)
    except UnicodeDecodeError as error:
        raise UsageError(f"a yaml in {folder} is not text: {error}") from None
    except REFUSED as error:
        raise UsageError(reason(error)) from None
    finally:
        GlobalHydra.instance().hydra = before


class Composer:
    """Composes jobs. Composing reads some twenty files, so jobs that choose the same files share
    it; their other keys are set in a copy.

    Args:
        config_dir: a folder of more yamls.
        bases: what was composed of words that choose files.
    """

    def __init__(self, config_dir: Path | None, bases: dict[tuple[str, ...], DictConfig]) -> None:
        self.config_dir, self.bases = config_dir, bases

    def lines(self, line: CommandLine) -> list[list[str]]:
        """The words of every job of a command line; what a recipe varies varies slowest."""
        overrides = parse_words(line.words)
        for override in overrides:
            if override.is_sweep_override() and not line.multirun:
                raise UsageError(
                    f"{override.input_line} names several values: add -m to run them all"
                )
        typed = {override.key_or_group for override in overrides}
        jobs: list[tuple[int, list[str]]] = []
        for words in _combinations(overrides):
            # What a recipe varies, unless the line sets it.
            params = self.base(words).hydra.sweeper.get("params") if line.multirun else None
            added = [f"{key}={value}" for key, value in (params or {}).items() if key not in typed]
            jobs += [(n, [*m, *words]) for n, m in enumerate(_combinations(parse_words(added)))]
        return [words for _, words in sorted(jobs, key=lambda job: job[0])]

    def base(self, words: list[str]) -> DictConfig:
        """What the words that choose files compose."""
        # Of ten thousand jobs most choose the same files: only what is new is parsed.
        lines = tuple(word for word in words if _chooses_file(word))
        if lines not in self.bases:
            for override in parse_words(list(lines)):
                group, name = override.key_or_group, str(override.value())
                if group in GROUPS and not override.is_delete() and name not in ("None", "null"):
                    check_known(f"unknown {group}={{}}", [name], choices(group, self.config_dir))
            self.bases[lines] = self.compose(lines)
        return self.bases[lines]

    def compose(self, words: Iterable[str]) -> DictConfig:
        """What Hydra composes from some words."""
        added = [f'hydra.searchpath=["file://{self.config_dir}"]'] if self.config_dir else []
        return hydra.compose("config", [*added, *words], return_hydra_config=True)

    def job(self, words: list[str]) -> DictConfig:
        """What all of the words compose."""
        cfg = deepcopy(self.base(words))
        keys = keys_of(OmegaConf.to_container(cfg, resolve=False))
        for override in parse_words(words):
            if not _chooses_file(override.input_line or ""):
                _set(cfg, override, keys)
        with open_dict(cfg.hydra):
            cfg.hydra.overrides.task = words
        return cfg


def _set(cfg: DictConfig, override: Override, keys: list[str]) -> None:
    """Set one of these keys, or add one to a mapping with arbitrary keys."""
    line, key = override.input_line, override.key_or_group.replace("seed.", "seed_")
    known = any(f"{one}.".startswith(f"{key}.") for one in [*keys, "seed_init", "seed_data"])
    arbitrary = key.startswith(tuple(f"{one}." for one in MAPPINGS)) or key.endswith("._target_")
    if not known and not arbitrary:
        raise UsageError(f"{line} is not a key of the configuration: {did_you_mean(key, keys)}")
    if override.is_delete():
        mapping, _, name = key.rpartition(".")
        if mapping not in MAPPINGS or name not in OmegaConf.select(cfg, mapping):
            raise UsageError(
                f"{line}: only a split, a file or a layer can be removed, ~task.splits.NAME, and "
                "added, task.splits.NAME.KEY=VALUE; a key is given a value"
            )
        with open_dict(cfg):
            OmegaConf.select(cfg, mapping).pop(name)
        return
    OmegaConf.update(cfg, key, override.value(), merge=key not in MAPPINGS, force_add=True)


def parse_words(words: list[str]) -> list[Override]:
    """The overrides of some words, each key once."""
    overrides: list[Override] = []
    for word in words:
        refuse_bare(word)
        try:
            overrides += OverridesParser.create().parse_overrides([word])
        except (HydraException, RecursionError):
            raise UsageError(
                f"{word} is not understood: values have no spaces, and values other than words "
                "and numbers are quoted, 'key=\"value\"'"
            ) from None
    for key, n in Counter(one.get_key_element().lstrip("+") for one in overrides).items():
        if n > 1:
            raise UsageError(f"{key} is given {n} times: keep one, or give -m {key}=A,B")
    return overrides


def _combinations(overrides: Iterable[Override]) -> Iterator[list[str]]:
    """The words of every combination of values, those of the last key varying fastest."""
    values = []
    for override in overrides:
        line = override.input_line or ""
        if override.is_discrete_sweep():
            key = override.get_key_element()
            # pe=glob(*) is a list of files.
            override.config_loader = GlobalHydra.instance().config_loader()
            values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
            if not values[-1]:
                raise UsageError(f"{line} has no values: give at least one")
        elif override.is_sweep_override():
            raise UsageError(f"{line} has no end of values: list them (A,B)")
        else:
            values.append([line])
    return map(list, product(*values))


def _chooses_file(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0].partition("@")[0]
    return key in GROUPS or "/" in key or key.startswith("hydra.")


def to_hydra(words: Iterable[str]) -> list[str]:
    """The words as Hydra itself takes them: it merges mappings, and ``seed`` is a number there."""
    done: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key in MAPPINGS and value.lstrip().startswith("{"):
            done.append(f"~{key}")
        if key.startswith(MAPPINGS):
            word = f"++{word}"
        done.append(re.sub(r"^\+*seed\.(init|data)=", r"++seed_\1=", word))
    return done


def keys_of(config: Any, prefix: str = "") -> list[str]:
    """The dotted keys of all values but mappings, without Hydra's own."""
    keys = []
    for name, value in config.items():
        if name not in ("hydra", "_target_"):
            below = isinstance(value, Mapping) and value
            keys += keys_of(value, f"{prefix}{name}.") if below else [f"{prefix}{name}"]
    return keys


def check_composed(cfg: DictConfig) -> Config:
    """The checked configuration of a composed job, whose key ``hydra`` holds Hydra's choices."""
    runtime = cfg.hydra.runtime
    folders = [one.path for one in runtime.config_sources if one.schema == "file"]
    for folder in folders:
        # Here for workers, too.
        use_config_dir(folder)
    names = {group: runtime.choices.get(group) for group in GROUPS if "/" not in group}
    ours = {str(k): value for k, value in cfg.items_ex(resolve=False) if k != "hydra"}
    try:
        resolved: Any = OmegaConf.to_container(OmegaConf.create(ours), resolve=True)
    except OmegaConfBaseException as error:
        raise UsageError(reason(error)) from None
    parts = {key: resolved.pop(f"seed_{key}") for key in SEEDS if f"seed_{key}" in resolved}
    if parts:
        resolved["seed"] = dict.fromkeys(SEEDS, resolved["seed"]) | parts
    if isinstance(resolved.get("pe"), dict):
        resolved["pe"] = fill_parts(resolved["pe"], folders[0] if folders else None)
    return check(
        resolved,
        {k: str(name) for k, name in names.items() if name not in (None, "no_recipe")},
    )


def encoding_section(name: str, key: str = "pe", config_dir: str | None = None) -> dict[str, Any]:
    """The keys of conf/pe/NAME.yaml.

    Args:
        key: the key of the choice, for messages.
        config_dir: a folder of more yamls.

    Raises:
        UsageError: there is no such yaml, or it cannot be read.
    """
    files = choices("pe", config_dir)
    check_known(f"unknown {key}={{}}", [name], files)
    try:
        section: Any = OmegaConf.to_container(OmegaConf.load(files[name]), resolve=True)
        return dict(section)
    except REFUSED as error:
        raise UsageError(f"{files[name]} cannot be read: {reason(error)}") from None


def fill_parts(section: Mapping[str, Any], config_dir: str | None = None) -> dict[str, Any]:
    """An encoding's section with the yaml of each named part of ``parts`` in its place.

    A part is a name (``rope``) or a mapping with ``pe: NAME`` and keys that differ from that
    yaml; a mapping with ``_target_`` is left as it is.

    Raises:
        UsageError: a part that names nothing.
    """
    if not isinstance(parts := section.get("parts"), list):
        return dict(section)
    filled = []
    for number, part in enumerate(parts):
        part = part if isinstance(part, dict) else {"pe": part}
        if "_target_" not in part:
            name = str(part.get("pe"))
            yaml_keys = encoding_section(name, f"pe.parts.{number}.pe", config_dir)
            part = {"pe": name, **yaml_keys, **part}
        filled.append(part)
    return {**section, "parts": filled}
