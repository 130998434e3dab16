"""The keys of wandb, and what a run is called there."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from pe_lab.common.validation import closed
from pe_lab.core.tracker import TrackedRun
from pe_lab.store.sweep_name import operational


@closed
class WandbConfig:
    """The keys of ``tracker.wandb`` (conf/tracker/wandb.yaml)."""

    mode: Literal["online", "offline", "disabled"]
    project: str
    entity: str | None
    name: Annotated[str, Field(max_length=128)] | None
    group: Annotated[str, Field(max_length=128)] | None
    notes: str | None
    tags: list[str]
    pictures: bool
    system_metrics: bool
    init_timeout: PositiveFloat


MAX_NAME, MAX_TAG = 128, 64
"""wandb's limits, in characters."""
NAMED = ("pe", "seed", "seed.data")
"""Keys that the beginning of a run's name has."""


def init_arguments(cfg: WandbConfig, run: TrackedRun) -> dict[str, Any]:
    """The arguments of wandb.init that identify a run.

    ``config`` has a key ``setting`` beside the configuration: the encoding and every override
    that can change a number except the seed, for averages over seeds.
    """
    names, model = run.config["names"], run.config["model"]
    tags = [*cfg.tags, names["task"], names["pe"], f"{model['n_layers']}L-d{model['d_model']}"]
    if "experiment" in names:
        tags.append(names["experiment"])
    if names.get("positions", "sequential") != "sequential":
        tags.append(names["positions"])
    relevant = [override.lstrip("+") for override in run.overrides if not operational(override)]
    relevant = [line for line in relevant if line.partition("=")[0] not in NAMED]
    setting = [names["pe"], *sorted(line for line in relevant if not line.startswith("task="))]
    return {
        "id": run.run_id,
        "name": cfg.name or _name(run, relevant),
        "group": cfg.group or run.sweep,
        "job_type": names["pe"],
        "tags": list(dict.fromkeys(tag[:MAX_TAG] for tag in tags)),
        "config": run.config | {"setting": " ".join(setting)},
        "notes": cfg.notes or shlex.join(["pe-lab", *run.overrides]),
    }


def _name(run: TrackedRun, overrides: Sequence[str]) -> str:
    """Encoding, seed and overrides; a long one ends in a digest of them."""
    again = f" again {run.run_id.rpartition('-again-')[2]}" if "-again-" in run.run_id else ""
    seed = run.config["seed"]
    data = seed["data"] if isinstance(seed, Mapping) else seed
    name = " ".join([f"{run.config['names']['pe']}-seed{data}{again}", *overrides])
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]} {digest}"
