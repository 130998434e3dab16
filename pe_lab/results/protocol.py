"""What the suites of conf/suite/ say of a run: up to which error it counts as generalised, and
whether a learning rate was chosen by its errors."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import polars as pl
import yaml

from pe_lab.core.config_dir import conf
from pe_lab.store.run_id import identity

# Of splits that no suite names.
DEFAULT_THRESHOLD = 0.05
SUITE_V1 = {
    **dict.fromkeys((("addition", "long_x2"), ("addition", "long_x3")), 0.05),
    **dict.fromkeys((("cycle", "long_x2"), ("cycle", "long_x4")), 0.1),
}
"""(task, split) -> threshold of a task that the later suites change or leave out."""


def threshold(task: str, split: str) -> float:
    """Return the largest error on a split of a task that counts as learned or generalised."""
    return _thresholds().get((task, split), DEFAULT_THRESHOLD)


@cache
def _thresholds() -> Mapping[tuple[str, str], float]:
    limits = {}
    for suite in suite_files().values():
        for of_task in suite["tasks"].values():
            task = next(word[5:] for word in of_task["words"] if word.startswith("task="))
            limits[task, "in_domain"] = of_task["fits"]
            limits |= {(task, split): limit for split, limit in of_task["generalises"].items()}
    return limits | SUITE_V1


@cache
def suite_files() -> Mapping[str, dict[str, Any]]:
    """Return what each yaml of conf/suite/ says, by the suite's name."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = sorted((conf() / "suite").glob("*.yaml"))
    return {file.stem: yaml.load(file.read_bytes(), loader) for file in files}


def task_digest(config: Mapping[str, Any], contents: Mapping[str, str] | None = None) -> str:
    """Return eight hex digits that identify what a recorded run was trained and measured on.

    The entry (``pe``, ``model`` and ``positions``), the seed, the rate and the number of steps are
    not part of it.
    """
    entry: dict[str, Any] = {key: {} for key in ("pe", "model", "positions")}
    train = {**config["train"], "lr": 0, "steps": 0}
    return identity({**config, **entry, "seed": 0, "train": train}, dict(contents or {}))


TUNING_OF = "tuning_of"


def tuning_of(digest: pl.Expr, seed: pl.Expr) -> pl.Expr:
    """Return the suite whose learning rates were chosen by the errors of a run; null: none.

    Args:
        digest: the ``task_digest`` of the run.
        seed: its seed, one of a suite's tuning seeds where a rate was chosen by it.
    """
    name = pl.lit(None, pl.String)
    # The last condition is the first that is tried.
    for suite, content in sorted(suite_files().items(), reverse=True):
        digests = [str(task["digest"]) for task in content["tasks"].values()]
        seeds = content["protocol"]["tuning_seeds"]
        name = (
            pl.when(digest.is_in(digests) & seed.is_in(seeds)).then(pl.lit(suite)).otherwise(name)
        )
    return name.alias(TUNING_OF)


def tuning(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the finished runs on which a suite chose a learning rate."""
    return runs.filter(pl.col("state") == "finished", pl.col(TUNING_OF).is_not_null())


def without_tuning(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the other runs, those that are not finished included."""
    return runs.filter(pl.col(TUNING_OF).is_null())
