"""The parts of a combined encoding: from names to full sections."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean
from pe_lab.config.hydra_internals import ConfigRepository, ConfigSearchPathImpl

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
    if not isinstance(parts, ListConfig) or not _is_combined(cfg.pe):
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
        reason = " ".join(str(error).split())
        raise UsageError(f"{key}={name} cannot be read ({reason}): correct that yaml") from None
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


def _is_combined(section: Any) -> bool:
    raw = OmegaConf.to_container(section, resolve=False)
    return isinstance(raw, dict) and raw.get("_target_") == COMBINED


def merged(section: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a part's yaml, overridden by those of the part."""
    return {"pe": part["pe"], **section, **part}
