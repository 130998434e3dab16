"""Our defaults for the launchers and sweepers of Hydra's plugins, and the checks of them.

A yaml file cannot replace the configuration that a plugin registers under the same name; a node in
Hydra's config store can.
"""

from importlib.util import find_spec
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from pe_lab.common.errors import UsageError

JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
OPTUNA = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"

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
    ("hydra/sweeper", "optuna"): {
        "defaults": [{"optional sampler": "tpe"}, "_self_"],
        "_target_": OPTUNA,
        # A fixed seed: the same command draws the same trials, and so resumes.
        "sampler": {"seed": 0},
        "direction": "minimize",
        "storage": None,
        "study_name": None,
        "n_trials": 20,
        # Trials at once; these are drawn without the results of each other.
        "n_jobs": "${oc.select:hydra.launcher.n_jobs,1}",
        # A failed trial does not end the search.
        "max_failure_rate": 1.0,
        "search_space": None,
        "custom_search_space": None,
        # Replaced key by key from the command line.
        "params": {
            "train.lr": "tag(log,interval(0.0003,0.03))",
            "model.d_model": "choice(32,64,128)",
        },
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


def check_installed(cfg: Any) -> None:
    """UsageError where the package of the chosen launcher or sweeper is not installed."""
    for kind in ("launcher", "sweeper"):
        module = cfg.hydra[kind]._target_.rpartition(".")[0]
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            choice = cfg.hydra.runtime.choices[f"hydra/{kind}"]
            package = module.split(".")[1].replace("_", "-")
            raise UsageError(
                f"hydra/{kind}={choice} needs {package}, which is not installed: "
                f"pip install {package}"
            )


def check_numbers(cfg: Any) -> None:
    """UsageError for numbers out of range, and for a search that does not minimize."""
    for key in (
        "launcher.n_jobs",
        "sweeper.n_jobs",
        "sweeper.n_trials",
        "sweeper.max_batch_size",
    ):
        value = OmegaConf.select(cfg, f"hydra.{key}")
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(
                f"hydra.{key}={value} is not allowed: set it to a whole number from 1, or leave "
                "it out"
            )
    if (direction := cfg.hydra.sweeper.get("direction", "minimize")) != "minimize":
        raise UsageError(
            f"hydra.sweeper.direction={direction} is not allowed, the in-domain error is "
            "minimized: leave it out"
        )
