"""Checks of the composed configuration against its schemas, and the parts of ``pe=combined``.

A closed group has a dataclass in schema.py. An open group (task, pe, positions, model, tracker) is
checked against the signature of the class that its ``_target_`` names.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from pe_lab.config.compose import unknown_key, unresolved
from pe_lab.config.hydra_internals import ConfigRepository, ConfigSearchPathImpl
from pe_lab.config.overrides import GROUPS
from pe_lab.config.schema import TRAIN_KEYS, Config, TrainConfig, folded, plain, validated
from pe_lab.core.config_dir import importable
from pe_lab.core.errors import UsageError, reason
from pe_lab.core.instantiate import normalize, refuse_booleans
from pe_lab.core.optimizer import Optimizer, optimizer_section
from pe_lab.core.suggest import did_you_mean
from pe_lab.core.task import Task
from pe_lab.core.tracker import Tracker
from pe_lab.core.validation import as_yaml, first_error, problem
from pe_lab.models.config import ModelConfig
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.positions import Positions

LARGEST = 2**63


def check_composed(cfg: DictConfig) -> Config:
    """The checked configuration of a composed job.

    Its key ``hydra`` holds Hydra's choices; a job that Hydra is calling has them in HydraConfig.
    """
    runtime = cfg.hydra.runtime if "hydra" in cfg else HydraConfig.get().runtime
    ours = {str(key): value for key, value in cfg.items_ex(resolve=False) if key != "hydra"}
    cfg, choices = OmegaConf.create(folded(ours)), runtime.choices
    names = {group: str(choices[group]) for group in GROUPS if choices.get(group) is not None}
    for source in runtime.config_sources:
        # The folder of --config-dir, here for workers too.
        if source.schema == "file" and source.provider != "plugin":
            importable(source.path)
    cfg = fill_parts(cfg, runtime.config_sources)
    try:
        resolved = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise UsageError(unresolved(cfg, error)) from None
    assert isinstance(resolved, dict)
    return check({str(key): value for key, value in resolved.items()}, names)


def refuse_large_numbers(value: Any, key: str = "") -> None:
    """Refuse whole numbers that no tensor can have as a size."""
    if isinstance(value, int) and abs(value) >= LARGEST:
        digits = str(value)
        shown = digits if len(digits) <= 24 else f"{digits[:12]}.. of {len(digits)} digits"
        raise UsageError(f"{key}={shown} is too large: set it to a number below 2^63")
    section = dict(enumerate(value)) if isinstance(value, list) else value
    for name, below in section.items() if isinstance(section, dict) else ():
        refuse_large_numbers(below, f"{key}.{name}" if key else str(name))


def check(resolved: dict[str, Any], names: dict[str, str]) -> Config:
    """The resolved configuration as a ``Config``.

    Args:
        names: the chosen option of each group.

    Raises:
        UsageError: an unknown or missing key, a value out of its limits.
    """
    refuse_large_numbers(resolved)
    try:
        config = validated({**resolved, "names": names})
    except ValidationError as error:
        first = first_error(error)
        known = _known(first["loc"][:-1])
        if first["type"] == "unexpected_keyword_argument":
            key = ".".join(map(str, first["loc"]))
            word = f"{key}={as_yaml(first['input'])}"
            raise UsageError(unknown_key(word, key, resolved, known)) from None
        said = problem(error, resolved, "", known)
        raise UsageError(
            said.replace("seed_init=", "seed.init=").replace("from_run=", "from=")
        ) from None
    refuse_booleans(resolved, plain(config), "")
    open_groups = {
        "task": _check_task(config.task),
        "pe": _check_encoding(config.pe, "pe"),
        "positions": normalize(config.positions, "positions", Positions),
        "model": normalize(config.model, "model", ModelConfig),
        "train": plain(config)["train"] | _check_optimizer(config.train),
        "tracker": normalize(config.tracker, "tracker", Tracker),
    }
    return validated({**plain(config), **open_groups})


def _check_optimizer(train: TrainConfig) -> dict[str, Any]:
    """The optimizer's arguments among the keys of ``train``, normalized."""
    section = optimizer_section(train.optimizer, train.optimizer_keys)
    try:
        checked = normalize(section, "train", Optimizer, leading=1, also=sorted(TRAIN_KEYS))
    except UsageError as error:
        raise UsageError(str(error).replace("train._target_=", "train.optimizer=")) from None
    return {key: checked[key] for key in train.optimizer_keys}


def _check_encoding(section: dict[str, Any], key: str, also: Sequence[str] = ()) -> dict[str, Any]:
    """An encoding's section and those of its parts, normalized."""
    checked = normalize(section, key, PositionalEncoding, leading=1, also=also)
    for name, value in checked.items():
        if isinstance(value, list) and all(isinstance(v, dict) and "_target_" in v for v in value):
            checked[name] = [_check_part(part, f"{key}.{name}.{n}") for n, part in enumerate(value)]
    return checked


def _check_part(part: dict[str, Any], key: str) -> dict[str, Any]:
    # The combination checks the name and the layers of a part.
    outer = {k: v for k, v in part.items() if k in ("pe", "layers")}
    section = {k: v for k, v in part.items() if k not in outer}
    return outer | _check_encoding(section, key, also=("layers",))


def _check_task(section: dict[str, Any]) -> dict[str, Any]:
    checked = normalize(section, "task", Task)
    for name, changes in checked.get("splits", {}).items():
        key = f"task.splits.{name}"
        for unknown in changes.keys() - section.keys():
            raise UsageError(
                f"{key}.{unknown} is not a key of the task: " + did_you_mean(unknown, section)
            )
        whole = normalize({**section, **changes, "splits": {}}, key, Task)
        # The task refuses splits of a split.
        checked["splits"][name] = {k: whole[k] if k != "splits" else changes[k] for k in changes}
    return checked


def _known(path: Sequence[int | str]) -> list[str]:
    """The keys of the closed group at this path; none where the path leaves the closed groups."""
    schema: Any = Config
    for part in path:
        schema = get_type_hints(schema).get(str(part)) if is_dataclass(schema) else None
    keys = get_type_hints(schema) if is_dataclass(schema) else {}
    return [key for key in keys if key not in ("names", "optimizer_keys", "seed_init")]


COMBINED = "pe_lab.pe.combined.Combined"


def fill_parts(cfg: DictConfig, sources: Sequence[Any]) -> DictConfig:
    """The configuration with the yaml of each named part of ``pe.parts`` in its place.

    A part is a name (``rope``) or a mapping with ``pe: NAME`` and keys that differ from that
    yaml; a mapping with ``_target_`` is left as it is.

    Args:
        sources: Hydra's ``runtime.config_sources``, where the yamls are looked for.

    Raises:
        UsageError: a part that names nothing, or is neither name nor mapping.
    """
    parts = OmegaConf.select(cfg, "pe.parts", throw_on_resolution_failure=False)
    if not isinstance(parts, ListConfig) or cfg.pe.get("_target_") != COMBINED:
        return cfg
    repository = repository_of(sources)
    listed: list[Any] = OmegaConf.to_container(parts, resolve=False)  # type: ignore[assignment]
    filled = [_filled(part, n, repository) for n, part in enumerate(listed)]
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    raw["pe"]["parts"] = filled
    full: DictConfig = OmegaConf.create(raw)
    return full


def repository_of(sources: Sequence[Any]) -> ConfigRepository:
    """The yamls of Hydra's ``runtime.config_sources``."""
    Plugins.instance()  # finds what reads file:// and pkg://
    path = ConfigSearchPathImpl()
    for source in sources:
        path.append(source["provider"], f"{source['schema']}://{source['path']}")
    return ConfigRepository(path)


def encoding_section(name: str, key: str, repository: ConfigRepository) -> dict[str, Any]:
    """The keys of conf/pe/NAME.yaml, interpolations unresolved.

    Args:
        key: the key of the choice, for messages.

    Raises:
        UsageError: there is no such yaml, or it cannot be read.
    """
    options = repository.get_group_options("pe", ObjectType.CONFIG)
    if name not in options:
        raise UsageError(f"unknown encoding {key}={name}: " + did_you_mean(name, options))
    try:
        found = repository.load_config(f"pe/{name}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{key}={name} cannot be read ({reason(error)}): correct that yaml"
        ) from None
    assert found is not None
    if any(not default.is_self() for default in found.defaults_list or []):
        raise UsageError(
            f"{key}={name} has a defaults list, which a part cannot have: write the keys out in "
            f"pe/{name}.yaml"
        )
    try:
        section: Any = OmegaConf.to_container(found.config, resolve=False)
    except OmegaConfBaseException as error:
        raise UsageError(f"{key}={name} cannot be read: {error}") from None
    return dict(section)


def _filled(part: Any, n: int, repository: ConfigRepository) -> dict[str, Any]:
    key = f"pe.parts.{n}"
    if isinstance(part, str):
        part = {"pe": part}
    if not isinstance(part, dict) or not ({"pe", "_target_"} & part.keys()):
        raise UsageError(
            f"{key}={json.dumps(part, ensure_ascii=False)} names no encoding: give a name (rope) "
            "or a mapping ({pe: rope})"
        )
    if "_target_" in part:
        return part
    name = str(part["pe"])
    section = encoding_section(name, f"{key}.pe", repository)
    if section.get("_target_") == COMBINED:
        raise UsageError(f"{key}.pe={name} is combined itself: list its parts here instead")
    return merged(section, part)


def merged(section: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a part's yaml, overridden by those of the part."""
    return {"pe": part["pe"], **section, **part}
