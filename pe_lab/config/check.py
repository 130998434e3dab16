"""Checks of the composed configuration against its schemas.

A closed group has a dataclass in schema.py. An open group (task, pe, positions, model, tracker) is
checked against the signature of the class that its ``_target_`` names.
"""

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from pe_lab.common.errors import UsageError
from pe_lab.common.instantiate import as_yaml, message, normalize, refuse_booleans
from pe_lab.common.suggest import did_you_mean
from pe_lab.common.trust import importable
from pe_lab.config.combined_parts import fill_parts
from pe_lab.config.compose_errors import unknown_key, unresolved
from pe_lab.config.overrides import GROUPS
from pe_lab.config.schema import TRAIN_KEYS, Config, TrainConfig, plain, validated
from pe_lab.config.seeds import folded
from pe_lab.core.optimizer import Optimizer, optimizer_section
from pe_lab.core.task import Task
from pe_lab.core.tracker import Tracker
from pe_lab.models.base import ModelConfig
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
        if source.schema == "file":
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
        first = error.errors()[0]
        known = _known(first["loc"][:-1])
        if first["type"] == "unexpected_keyword_argument":
            key = ".".join(map(str, first["loc"]))
            word = f"{key}={as_yaml(first['input'])}"
            raise UsageError(unknown_key(word, key, resolved, known)) from None
        said = message(error, resolved, "", known)
        raise UsageError(said.replace("seed_init=", "seed.init=")) from None
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
