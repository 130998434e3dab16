"""From what Hydra composed to a configuration in which nothing is wrong that can be known."""

from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab.common.errors import UsageError
from pe_lab.config.combined_parts import fill_parts
from pe_lab.config.compose import unresolved
from pe_lab.config.overrides import GROUPS
from pe_lab.config.schema import Config


def checked(cfg: DictConfig) -> Config:
    """The configuration of a composed job, ``hydra`` in it."""
    ours = {str(key): value for key, value in cfg.items_ex(resolve=False) if key != "hydra"}
    return _checked(OmegaConf.create(ours), cfg.hydra.runtime)


def checked_job(cfg: DictConfig) -> Config:
    """The configuration that Hydra calls a job with."""
    return _checked(cfg, HydraConfig.get().runtime)


def _checked(cfg: DictConfig, runtime: Any) -> Config:
    from pe_lab.config.instantiate import check

    names = _names(runtime.choices)
    cfg = fill_parts(cfg, runtime.config_sources)
    try:
        resolved = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise UsageError(unresolved(cfg, error)) from None
    assert isinstance(resolved, dict)
    return check({str(key): value for key, value in resolved.items()}, names)


def _names(choices: Any) -> dict[str, str]:
    return {group: str(choices[group]) for group in GROUPS if choices.get(group) is not None}
