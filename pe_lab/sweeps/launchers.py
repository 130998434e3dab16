"""Our defaults for the launchers of Hydra's plugins, and whether one is installed.

A yaml file cannot replace the configuration that a plugin registers under the same name; a node in
Hydra's config store can.
"""

from importlib import import_module
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import DictConfig

from pe_lab.core.errors import UsageError

JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"

JOBLIB_KEYS: dict[str, Any] = {
    "_target_": JOBLIB,
    # Jobs at once: the cores that this process may use, by the threads of a run.
    "n_jobs": "${cores:${threads}}",
    # Jobs handed to a worker at a time: none may queue behind a long one.
    "batch_size": 1,
    "pre_dispatch": "2*n_jobs",
    "verbose": 0,
    "timeout": None,
    "temp_folder": None,
}


def register_choices() -> None:
    """Register our configurations in place of those of the plugins."""
    # Loads the plugins, which register theirs first.
    Plugins.instance()
    launchers = ConfigStore.instance()
    launchers.store(group="hydra/launcher", name="joblib", node=JOBLIB_KEYS, provider="pe-lab")
    if "submitit_slurm.yaml" not in launchers.list("hydra/launcher"):
        # conf/hydra/launcher/slurm.yaml builds on it; check_launcher says that it is missing.
        launchers.store(group="hydra/launcher", name="submitit_slurm", node={})


def check_launcher(cfg: DictConfig) -> None:
    """Refuse a launcher that cannot work here.

    Raises:
        UsageError: its package is missing.
    """
    module = cfg.hydra.launcher._target_.rpartition(".")[0]
    try:
        import_module(module)
    except ImportError:
        package = module.split(".")[1].replace("_", "-")
        raise UsageError(
            f"hydra/launcher={cfg.hydra.runtime.choices['hydra/launcher']} needs {package}, which "
            f"is not installed: pip install {package}"
        ) from None
