"""The result of a run: its evaluation sets and its summary.json."""

import math
import time
from typing import Any

from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import IN_DOMAIN, generated_metrics, metric_names, metric_prefix
from pe_lab.common.task import Batch
from pe_lab.config.schema import plain
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
