"""Measuring cells: the metrics of a run's model with an encoding on the sequences of a target."""

import logging
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pe_lab.common.errors import RunError
from pe_lab.common.metrics import generated_metrics
from pe_lab.common.signals import stopping
from pe_lab.common.task import Batch, Ints
from pe_lab.config.schema import plain, validated
from pe_lab.evaluation.cells import Cell
from pe_lab.evaluation.memory import DoesNotFit, halve_until_it_fits
from pe_lab.experiment.load_run import LoadedRun, load
from pe_lab.experiment.machine import environment, prepare
from pe_lab.training.generate import generated_answers
from pe_lab.training.measure import answer, fixed_positions

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
        placed = replace(run, plan=cell.plan, model=cell.model(run).to(device))
        positions = fixed_positions(run.plan.positions, cell.target.split, *data.tokens.shape)
        numbers = self._numbers(cell, placed, data, positions, config.eval.batch_tokens)
        numbers["guess"] = cell.target.task.guess(reference, data)
        seconds = perf_counter() - began
        encoding = {"encoding": cell.encoding, "k": cell.scale}
        return {**encoding, **numbers, "seconds": seconds, **self._provenance(device)}

    def _numbers(
        self, cell: Cell, run: LoadedRun, data: Batch, positions: Ints, batch_tokens: int
    ) -> dict[str, Any]:
        """The metrics, measured in smaller batches if memory runs out, here and afterwards."""
        sequences, tokens = data.tokens.shape

        def measure(rows: int) -> dict[str, Any]:
            options: dict[str, Any] = {
                "batch_tokens": rows * tokens, "autocast": run.autocast, "poll": _poll
            }  # fmt: skip
            found: dict[str, Any] = answer(
                run.model, cell.target.task, data, positions, **options
            ).measured()
            if cell.measurement.generated:
                written = generated_answers(run.model, data, positions, **options).measured()
                found |= generated_metrics(written)
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
