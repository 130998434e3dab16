"""Our defaults for the launchers of Hydra's plugins, and the checks of them.

A yaml file cannot replace the configuration that a plugin registers under the same name; a node in
Hydra's config store can.
"""

from importlib.util import find_spec
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import DictConfig

from pe_lab.core.errors import UsageError

JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"

CHOICES: dict[tuple[str, str], dict[str, Any]] = {
    ("hydra/launcher", "joblib"): {
        "_target_": JOBLIB,
        # Jobs at once: the cores that this process may use, by the threads of a run.
        "n_jobs": "${cores:${threads}}",
        # Jobs handed to a worker at a time: none may queue behind a long one.
        "batch_size": 1,
        "pre_dispatch": "2*n_jobs",
        "verbose": 0,
        "timeout": None,
        "temp_folder": None,
    },
}
"""(group, name) -> our configuration of it."""


def register_choices() -> None:
    """Register our configurations in place of those of the plugins."""
    # Loads the plugins, which register theirs first.
    Plugins.instance()
    for (group, name), node in CHOICES.items():
        ConfigStore.instance().store(group=group, name=name, node=node, provider="pe-lab")
    if "submitit_slurm.yaml" not in ConfigStore.instance().list("hydra/launcher"):
        # conf/hydra/launcher/slurm.yaml builds on it; check_installed says that it is missing.
        ConfigStore.instance().store(group="hydra/launcher", name="submitit_slurm", node={})


def check_launcher(cfg: DictConfig) -> None:
    """Refuse a launcher that cannot work here.

    Raises:
        UsageError: its package is missing.
    """
    module = cfg.hydra.launcher._target_.rpartition(".")[0]
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        package = module.split(".")[1].replace("_", "-")
        raise UsageError(
            f"hydra/launcher={cfg.hydra.runtime.choices['hydra/launcher']} needs {package}, which "
            f"is not installed: pip install {package}"
        )
