"""What the keys of a configuration that are null stand for."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from pe_lab.models.base import ModelConfig
from pe_lab.pe.base import PositionalEncoding


def null_values(
    config: Mapping[str, Any], model: ModelConfig, encodings: Iterable[PositionalEncoding]
) -> dict[str, Any]:
    """The keys of a configuration that are null and stand for a value, with that value:
    ``pe.npos`` -> 65. One that stands for different values in different layers is left out."""
    found: dict[str, list[Any]] = {}
    for group, made in (("model", [model]), ("pe", encodings)):
        for one in made:
            for key, value in one.null_values().items():
                if value is not None:
                    found.setdefault(f"{group}.{key}", []).append(value)
    return {
        key: values[0]
        for key, values in found.items()
        if len(set(values)) == 1 and _is_null(config, key)
    }


def replaced(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with these values of dotted keys."""
    changed: Any = deepcopy(dict(config))
    for key, value in values.items():
        section, name = _section(changed, key)
        section[name] = value
    return dict(changed)


def _is_null(config: Any, key: str) -> bool:
    section, name = _section(config, key)
    return name in section and section[name] is None


def _section(config: Any, key: str) -> tuple[Any, str]:
    """The mapping that holds a dotted key, and its name there."""
    *path, name = key.split(".")
    for part in path:
        config = config[int(part)] if isinstance(config, list) else config[part]
    return config, name
