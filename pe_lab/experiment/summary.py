"""The result of a run: its evaluation sets, its summary.json and the table it prints."""

import math
import time
from typing import Any

from rich.table import Table

from pe_lab.common.console import percent
from pe_lab.common.errors import UsageError
from pe_lab.config.schema import plain
from pe_lab.core.metrics import (
    IN_DOMAIN,
    METRICS,
    generated_metrics,
    is_share,
    metric_names,
    metric_prefix,
)
from pe_lab.core.task import Batch
from pe_lab.training.batches import evaluation_set
from pe_lab.training.plan import Plan
from pe_lab.training.trainer import Trainer


def evaluation_sets(planned: Plan) -> dict[str, Batch]:
    """The sequences of every measured split, the same for every seed.

    Raises:
        UsageError: the first sequences of a split have nothing to score.
    """
    sizes = planned.config.eval
    sets = {}
    for split in planned.splits:
        n, quick = (planned.sequences(split, m) for m in (sizes.sequences, sizes.quick_sequences))
        sets[split] = evaluation_set(planned.task, split, n)
        if not sets[split].scored[:quick].any():
            raise UsageError(
                f"the split {split} has nothing to score in its first {quick} sequences: raise "
                f"eval.quick_sequences={sizes.quick_sequences}, or change task.splits.{split}"
            )
    return sets


def summarize(trainer: Trainer, overrides: list[str]) -> dict[str, Any]:
    """Evaluate the trained model on every split; returns the content of summary.json."""
    planned, config, began = trainer.plan, trainer.plan.config, time.perf_counter()
    reference = trainer.evaluator.sets[IN_DOMAIN]
    metrics: dict[str, float] = {}
    by: dict[str, Any] = {}
    for split, data in trainer.evaluator.sets.items():
        answers = trainer.evaluator.answers(split)
        numbers = answers.measured()
        numbers["guess"] = planned.task.split(split).guess(reference, data)
        by[split] = answers.breakdown(planned.task.exact_tags)
        if config.eval.generate:
            numbers |= generated_metrics(trainer.evaluator.generated(split).measured())
        metrics |= metric_names(split, numbers)
    encoding = {id(p): p for e in trainer.model.encodings for p in e.parameters()}
    metrics |= {
        "params/total": sum(p.numel() for p in trainer.model.parameters()),
        "params/encoding": sum(p.numel() for p in encoding.values()),
        "time/train_s": trainer.seconds,
        "time/measure_s": time.perf_counter() - began,
    }
    resolved = plain(planned.resolved)
    names = resolved.pop("names")
    return {
        "task": names["task"],
        "pe": names["pe"],
        "seed": config.seed,
        "run_id": trainer.folder.run_id,
        "identity": trainer.folder.identity,
        "digests": {
            "checkpoint.pt": trainer.checkpoint_digest,
            "metrics.jsonl": trainer.log.mark[1],
            **trainer.folder.digests(),
        },
        "steps": trainer.step,
        "names": names,
        "overrides": overrides,
        "splits": {s: metric_prefix(s) for s in planned.splits} | dict.fromkeys(planned.too_long),
        "too_long": planned.too_long,
        # JSON has no nan, which a loss out of domain may be.
        "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        "by": by,
        "config": resolved,
        "null_keys": sorted(planned.null_values),
        "contents": planned.task.contents(),
    }


def split_table(summary: dict[str, Any]) -> Table:
    """One row per split of a finished run."""
    metrics = summary["metrics"]
    shown = [(metric.column, metric.name) for metric in METRICS if metric.column]
    if any(key.endswith("/error_generated") for key in metrics):
        shown.insert(3, ("written", "error_generated"))
    title = f"{summary['task']}, {summary['pe']}, seed {summary['seed']}: error in %"
    table = Table(title=title, title_justify="left")
    table.add_column("split")
    for column, _ in shown:
        table.add_column(column, justify="right")
    for split, prefix in summary["splits"].items():
        if prefix is None:
            reason = f"needs {summary['too_long'][split]} positions"
            table.add_row(split, "not applicable", reason, *[""] * (len(shown) - 2))
        else:
            table.add_row(split, *(_cell(metrics, prefix, name) for _, name in shown))
    return table


def _cell(metrics: dict[str, Any], prefix: str, name: str) -> str:
    value = metrics.get(f"{prefix}/{name}")
    if name == "error_low":
        return f"{percent(value)} .. {percent(metrics[f'{prefix}/error_high'])}"
    if value is None:
        return "not finite" if f"{prefix}/{name}" in metrics else "-"
    if is_share(name):
        return percent(value)
    return str(value) if isinstance(value, int) else f"{value:.4f}"
