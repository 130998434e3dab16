"""From the command line's overrides to one composed configuration per job."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import configure_log, run_job
from hydra.errors import HydraException, MissingConfigException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from pe_lab.common.config_dir import check_config_dir
from pe_lab.common.errors import UsageError
from pe_lab.config.compose_errors import broken_yaml, check_presets, missing, not_text, refused
from pe_lab.config.hydra_internals import (
    BasicSweeper,
    Callbacks,
    ConfigLoaderImpl,
    Hydra,
    create_config_search_path,
)
from pe_lab.config.overrides import check_override, check_words, replace_mappings
from pe_lab.config.seeds import WORDS, as_composed

CONFIG_PATH = "pkg://pe_lab.conf"


def open_hydra(args: Any) -> Hydra:
    """Hydra with our configuration and the folder of ``--config-dir``, set as GlobalHydra."""
    search_path = create_config_search_path(CONFIG_PATH)
    if args.config_dir is not None:
        check_config_dir(args.config_dir)
        folder = Path(args.config_dir).absolute()
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return Hydra.create_main_hydra2("pe-lab", search_path)


def compose(args: Any) -> list[DictConfig]:
    """The configuration of every job of the command line.

    ``args.overrides`` are replaced by words from which Hydra composes the same.
    """
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
    """The words, preceded by the sweep of the yamls (``hydra.sweeper.params``) for other keys.

    A recipe's sweep is a table, not a search space: a sweeper that searches gets the recipe as it
    is without -m.
    """
    overrides = parser.parse_overrides(words)
    keys = {override.key_or_group for override in overrides}
    recipe = next((o for o in overrides if o.key_or_group == "experiment"), None)
    others = [word for word in words if recipe is None or word != recipe.input_line]
    if recipe is not None and recipe.is_discrete_sweep():
        for name in map(str, recipe.sweep_iterator()):
            params, _ = _params(hydra, [*others, f"experiment={name}"])
            if left := [key for key in params if key not in keys]:
                raise UsageError(
                    f"{recipe.input_line} names several recipes and {name} varies "
                    f"{', '.join(left)}: run each recipe by itself, or give these keys"
                )
    params, runs_all = _params(hydra, words)
    swept = params if runs_all else _params(hydra, others)[0]
    if not params or (swept == params and not runs_all):
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


def _params(hydra: Hydra, words: list[str]) -> tuple[dict[str, str], bool]:
    """The sweep of the yamls with these words, and whether all its combinations are run."""
    cfg = _compose_job(hydra, words, RunMode.MULTIRUN)
    params = dict(cfg.hydra.sweeper.get("params") or {})
    return params, cfg.hydra.runtime.choices["hydra/sweeper"] == "basic"


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
        if not any(o.key_or_group == "hydra/sweeper" and o.value() != "basic" for o in overrides):
            raise UsageError(
                f"{interval.input_line} has no end of values: list them (A,B), or choose a sweeper "
                "that searches (hydra/sweeper=NAME)"
            )
        # A search draws its values while it runs: only fixed keys can be checked before.
        return [[o.input_line or "" for o in overrides if not o.is_sweep_override()]]
    batches = BasicSweeper.split_arguments(list(overrides), None)
    return [job for batch in batches for job in batch]
