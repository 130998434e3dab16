"""Many jobs composed at the price of a few: those that choose the same files differ in values."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException


def compose_all(
    hydra: Hydra,
    parser: OverridesParser,
    jobs: Iterable[list[str]],
    compose: Callable[[Hydra, list[str]], DictConfig],
) -> list[DictConfig]:
    """What ``compose`` makes of each job's words. Hydra reads and merges some twenty files for
    one; here once for each choice of files, and the values are set in a copy, in Hydra's order."""
    bases: dict[tuple[str, ...], DictConfig] = {}
    done = []
    for words in jobs:
        overrides = parser.parse_overrides(words)
        values = [o for o in overrides if not _chooses_a_file(hydra, o)]
        files = tuple(w for w, o in zip(words, overrides, strict=True) if o not in values)
        try:
            if files not in bases:
                bases[files] = compose(hydra, list(files))
            cfg = deepcopy(bases[files])
            ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
        except (HydraException, OmegaConfBaseException, ValueError):
            # The sentence for it is made of the whole.
            cfg = compose(hydra, words)
        with open_dict(cfg.hydra):
            cfg.hydra.overrides.hydra = [o.input_line for o in overrides if o.is_hydra_override()]
            cfg.hydra.overrides.task = [
                o.input_line for o in overrides if not o.is_hydra_override()
            ]
        done.append(cfg)
    return done


def _chooses_a_file(hydra: Hydra, override: Any) -> bool:
    exists: bool = hydra.config_loader.repository.group_exists(override.key_or_group)  # type: ignore[attr-defined]
    return exists and not isinstance(override.value(), dict)
