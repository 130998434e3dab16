"""Measuring cells: the metrics of a run's model with an encoding on the sequences of a target."""

import logging
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pe_lab.common.errors import RunError
from pe_lab.common.signals import stopping
from pe_lab.config.schema import plain, validated
from pe_lab.core.metrics import generated_metrics
from pe_lab.core.task import Batch
from pe_lab.evaluation.cells import Cell
from pe_lab.experiment.load_run import LoadedRun, load
from pe_lab.experiment.machine import environment, prepare
from pe_lab.models.base import Model
from pe_lab.training.measure import Evaluator
from pe_lab.training.memory import DoesNotFit, halve_until_it_fits

logger = logging.getLogger("pe_lab")


class CellMeasurer:
    """Measures one cell after another; consecutive cells of a run share its loaded model."""

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self.run: LoadedRun | None = None
        self.provenance: dict[str, Any] | None = None
        self.max_tokens: int | None = None

    def measure(self, cell: Cell, data: Batch, reference: Batch) -> dict[str, Any]:
        """The columns of a row other than its measurement.

        Args:
            reference: in-domain sequences, from which the error of guessing is computed.
        """
        _poll()
        began = perf_counter()
        run = self._load(cell.path)
        config = run.plan.config
        device = prepare(
            validated({**plain(config), "device": self.device, "threads": self.threads})
        )
        numbers = self._numbers(cell, cell.model(run).to(device), data)
        numbers["guess"] = cell.target.task.guess(reference, data)
        seconds = perf_counter() - began
        encoding = {"encoding": cell.encoding, "k": cell.scale}
        return {**encoding, **numbers, "seconds": seconds, **self._provenance(device)}

    def _numbers(self, cell: Cell, model: Model, data: Batch) -> dict[str, Any]:
        """The metrics, measured in smaller batches if memory runs out, here and afterwards."""
        sequences, tokens = data.tokens.shape
        batch_tokens, split = cell.plan.config.eval.batch_tokens, cell.target.split

        def measure(rows: int) -> dict[str, Any]:
            evaluator = Evaluator(cell.plan, model, {split: data}, _poll, rows * tokens)
            found: dict[str, Any] = evaluator.answers(split).measured()
            if cell.measurement.generated:
                found |= generated_metrics(evaluator.generated(split).measured())
            return found

        rows = max(1, min(batch_tokens, self.max_tokens or batch_tokens) // tokens)
        rows = min(rows, sequences)
        try:
            numbers, fitting = halve_until_it_fits(measure, rows)
        except DoesNotFit:
            raise RunError(
                f"out of memory: one sequence of {tokens} tokens of {cell.target.split} with "
                f"pe={cell.encoding} does not fit; give shorter lengths= (what was measured "
                "before is recorded)"
            ) from None
        if fitting < rows:
            self.max_tokens = fitting * tokens
            logger.warning(
                "out of memory with %d sequences of %d tokens at once: continuing with %d",
                rows, tokens, fitting,
            )  # fmt: skip
        return numbers

    def _load(self, path: Path) -> LoadedRun:
        if self.run is None or self.run.path != path:
            self.run = load(path)
        return self.run

    def _provenance(self, device: torch.device) -> dict[str, Any]:
        if self.provenance is None:
            facts, changed = environment(self.threads, device.type, device.index)
            self.provenance = {
                "version": facts["versions"]["pe-lab"],
                "git_revision": facts["git_revision"],
                "git_changed": bool(changed),
                **{name: facts[name] for name in ("device", "threads", "host")},
            }
        return {
            **self.provenance,
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        }


def _poll() -> None:
    if (stop := stopping()) is not None:
        raise stop
