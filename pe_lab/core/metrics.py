"""The metrics of a split: name, computation, order, how each is shown, and the error that counts as
learned or generalised.

A run has them as ``in_domain/<name>`` and ``ood/<split>/<name>``. To add a metric, add a line to
``METRICS``: it is then measured during and after training and by ``pe-lab eval``, kept in
metrics.jsonl, summary.json and evaluations.jsonl, and is a column of ``read_runs``, ``by_split``
and wandb's tables. With ``charted=True``, wandb charts it and ``pe-lab eval metric=<name>`` offers
it; with a ``column``, it is in the table at the end of a run. ``pe-lab results metric=<name>`` has
them all.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any, Literal

from pe_lab.core.config_dir import conf
from pe_lab.core.files import read_yaml

IN_DOMAIN = "in_domain"
OOD = "ood"
# The mean error over the OOD splits.
MEAN_OOD = f"{OOD}/error"
# The column with the names of the metrics that were infinite or NaN, separated by blanks.
NOT_FINITE = "not_finite"
Z_95 = 1.959963984540054


def metric_prefix(split: str) -> str:
    """``in_domain``, or ``ood/<split>``: what the names of a split's metrics begin with; ``ood`` is
    the mean of all the latter."""
    return split if split in (IN_DOMAIN, OOD) else f"{OOD}/{split}"


def metric_name(split: str, name: str) -> str:
    """``in_domain/error``, ``ood/sparse/error``."""
    return f"{metric_prefix(split)}/{name}"


def mean_ood(metrics: Mapping[str, float | None], splits: Iterable[str]) -> float | None:
    """The mean error over the OOD splits; None if there are none or one was not measured."""
    ood = [split for split in splits if split != IN_DOMAIN]
    errors = [e for split in ood if (e := metrics.get(metric_name(split, "error"))) is not None]
    return fmean(errors) if errors and len(errors) == len(ood) else None


def wilson(k: float, n: int) -> tuple[float, float]:
    """Wilson score interval of a proportion, k of n, at 95 % (Wilson 1927).

    It assumes independent draws. Answers within a sequence are correlated, hence ``error_seq``
    beside ``error``.
    """
    z, p, z2 = Z_95, k / n, Z_95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # Of none or all the bound is 0 or 1; rounding would make it 5e-20.
    return 0.0 if k <= 0 else max(0.0, centre - half), 1.0 if k >= n else min(1.0, centre + half)


@dataclass(frozen=True)
class Metric:
    """A number of a split.

    Args:
        compute: the number from ``train.measure.Answers``; None for guessing, which the task
            computes from its data.
        unit: share (shown in %), nats or count.
        column: heading in the table at the end of a run.
        charted: whether wandb charts it and ``pe-lab eval metric=<name>`` offers it.
        generated: whether it is also measured for answers that the model generates itself, as
            ``<name>_generated``.
        closing_only: kept in summary.json only, not in metrics.jsonl and tables.
        lower_is_better: the lowest mean may be marked as the best of a column.
        may_overflow: it may be infinite or NaN, which JSON cannot hold.
    """

    name: str
    compute: Callable[[Any], float] | None
    unit: Literal["share", "nats", "count"]
    column: str = ""
    charted: bool = False
    generated: bool = False
    closing_only: bool = False
    lower_is_better: bool = False
    may_overflow: bool = False


METRICS = (
    Metric(
        "error",
        lambda answers: answers.n_wrong / answers.n,
        "share",
        charted=True,
        column="error",
        generated=True,
        lower_is_better=True,
    ),
    Metric(
        "error_low",
        lambda answers: wilson(answers.n_wrong, answers.n)[0],
        "share",
        column="95 % interval",
        generated=True,
        lower_is_better=True,
    ),
    Metric(
        "error_high",
        lambda answers: wilson(answers.n_wrong, answers.n)[1],
        "share",
        generated=True,
        lower_is_better=True,
    ),
    Metric(
        "error_seq",
        lambda answers: answers.n_seq_wrong / answers.n_seq,
        "share",
        charted=True,
        column="per sequence",
        generated=True,
        lower_is_better=True,
    ),
    Metric(
        "loss",
        lambda answers: float(answers.loss.mean()),
        "nats",
        charted=True,
        lower_is_better=True,
        may_overflow=True,
    ),
    Metric("n", lambda answers: answers.n, "count", column="scored"),
    Metric("n_seq", lambda answers: answers.n_seq, "count", closing_only=True),
    Metric("guess", None, "share", column="guessing"),
)

# Metrics of a whole run that tables and charts show, with their titles.
COSTS = {"time/train_s": "training time (s)", "params/total": "parameters"}


def compute_metrics(answers: Any) -> dict[str, float]:
    """Every metric of these ``train.measure.Answers``."""
    return {metric.name: metric.compute(answers) for metric in METRICS if metric.compute}


def generated_metrics(answers: Any) -> dict[str, float]:
    """The metrics of generated answers that are kept, as ``<name>_generated``, and where the task
    says what ends an answer the shares of ``ENDINGS``."""
    numbers = compute_metrics(answers)
    kept = {name: numbers[name.removesuffix("_generated")] for name in GENERATED}
    if answers.late is not None:
        kept["right"] = 1 - numbers["error_seq"]
        kept["too_early"] = float((answers.late < 0).mean())
        kept["endless"] = float((answers.late == math.inf).mean())
    return kept


GENERATED = tuple(f"{metric.name}_generated" for metric in METRICS if metric.generated)
# How generated answers end, as shares of the sequences: right to the end, ended before the right
# place, and not ended. The others err, or end late.
ENDINGS = ("right", "too_early", "endless")
# In tables of splits, in this order.
TABLED = tuple(metric.name for metric in METRICS if not metric.closing_only)
# Those that training changes.
CURVES = tuple(m.name for m in METRICS if m.compute is not None and m.unit != "count")
# Those that are shown in %; ``accuracy`` is 1 - error.
SHARES = {"accuracy", *GENERATED, *ENDINGS, *(m.name for m in METRICS if m.unit == "share")}
CHARTED = tuple(metric for metric in METRICS if metric.charted)


@cache
def threshold(task: str, split: str) -> float:
    """Return the largest error on a split of a task that counts as learned or generalised: that of
    the suites, 0.05 where they do not name the split."""
    limit = 0.05
    for suite in suite_files().values():
        for of_task in suite["tasks"].values():
            if f"task={task}" in of_task["words"]:
                limits = {IN_DOMAIN: of_task["fits"], **of_task["generalises"]}
                limit = limits.get(split, limit)
    return limit


@cache
def suite_files() -> Mapping[str, dict[str, Any]]:
    """Return what each yaml of conf/suite/ says, by the suite's name."""
    return {file.stem: read_yaml(file) for file in sorted((conf() / "suite").glob("*.yaml"))}
