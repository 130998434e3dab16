"""The training loop: loss, steps, evaluation and checkpoints. It can stop and resume at any step.

Shape letters: B batch, T tokens.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.console import logger
from pe_lab.core.errors import DamagedError, RunError
from pe_lab.core.metrics import IN_DOMAIN, TABLED, compute_metrics, metric_name
from pe_lab.core.rng import generator, torch_seed
from pe_lab.core.task import Batch, Bools
from pe_lab.models.base import Model
from pe_lab.pe.functional import widened
from pe_lab.store import checkpoint
from pe_lab.store.run_folder import REMEDY, RunFolder
from pe_lab.train.batches import TrainData
from pe_lab.train.measure import Evaluator
from pe_lab.train.optimizer import Adam, learning_rate
from pe_lab.train.plan import Plan

STATE = ("step", "loss_sum", "loss_steps", "last_loss", "measured_at", "below", "seconds")
"""The attributes of a trainer that a checkpoint holds."""


def sum_loss(model: Model, batch: Batch, loss_mask: Bools, pos: Tensor) -> Tensor:
    """Return the cross-entropy summed over the positions of the loss. Logits are computed there
    only."""
    device = model.device
    targets = torch.from_numpy(batch.targets[loss_mask]).to(device)
    tokens = torch.from_numpy(batch.tokens).to(device)
    hidden = model(tokens, pos, scored=torch.from_numpy(np.flatnonzero(loss_mask)).to(device))
    return F.cross_entropy(widened(model.unembed(hidden)), targets, reduction="sum")


TIMED = 5
"""Steps that are timed to tell what a run will take."""


def seconds_a_step(plan: Plan, device: torch.device) -> float:
    """Return the median time of a training step, by a few of them after the first."""
    trainer, times = Trainer(plan, device, RunFolder(Path("timed")), {}, lambda: None), []
    for _ in range(1 + TIMED):
        began = time.perf_counter()
        trainer.train_step()
        times.append(time.perf_counter() - began)
    return median(times[1:])


class Trainer:
    """Trains the model of a plan. A run resumes bit for bit from its checkpoint; batches and
    random positions are functions of the step.

    Args:
        sets: the evaluation set of each split.
        get_interrupt: is called between steps and batches. An exception that it returns is raised
            after the checkpoint has been written.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        folder: RunFolder,
        sets: dict[str, Batch],
        get_interrupt: Callable[[], BaseException | None],
    ) -> None:
        self.plan, self.config = plan, plan.config.train
        self.folder, self.get_interrupt = folder, get_interrupt
        self.device = device
        self.model = plan.model().to(device)
        self.optimizer = Adam(self.config, self.model.parameters())
        self.data = TrainData(plan.task, plan.config.seed, self.config.batch_size)
        self.positions_rng = generator(plan.config.seed, "train positions", 0)
        self.evaluator = Evaluator(plan, self.model, sets, self._poll)
        self.step = self.measured_at = self.below = 0
        self.loss_sum, self.loss_steps, self.last_loss = 0.0, 0, math.nan
        self.seconds = 0.0
        self.checkpoint_digest = ""
        self.log: Callable[[dict[str, Any]], None]
        torch.manual_seed(torch_seed(plan.config.seed, "dropout"))

    def resume(self) -> bool:
        """Restores the state from the folder's checkpoint. Returns False if there is none."""
        if not self.folder.checkpoint.exists():
            self.folder.cut_rows()
            return False
        state = checkpoint.load(self.folder.checkpoint)
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state(state["optimizer"])
            for name in STATE:
                setattr(self, name, state[name])
            self.folder.cut_rows(*state["metrics_mark"])
            torch.set_rng_state(state["rng"])
            if self.device.type == "cuda" and state["rng_cuda"] is not None:
                torch.cuda.set_rng_state(state["rng_cuda"])
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise DamagedError(
                f"the checkpoint {self.folder.checkpoint} does not fit this run "
                f"({str(error).splitlines()[0]}): {REMEDY}"
            ) from None
        return True

    def save(self) -> None:
        """Writes the checkpoint. If a parameter is not finite, the last good one is kept."""
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise self._not_finite("a parameter", self.step)
        cuda = self.device.type == "cuda"
        self.checkpoint_digest = checkpoint.save(
            self.folder.checkpoint,
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state,
                "rng": torch.get_rng_state(),
                "rng_cuda": torch.cuda.get_rng_state() if cuda else None,
                "metrics_mark": self.folder.mark_rows(),
                **{name: getattr(self, name) for name in STATE},
            },
        )
        self.folder.set_status("running", self.step, self.config.steps)

    def fit(
        self, log: Callable[[dict[str, Any]], None], show: Callable[[int, float], None]
    ) -> None:
        """Trains to the last step, or until the in-domain error has stayed at most ``stop_below``.

        Args:
            log: is called with each row of measurements.
            show: is called after every step with its number and the last logged loss.
        """
        self.log = log
        while not self.is_done():
            began = time.perf_counter()
            self.train_step()
            self.seconds += time.perf_counter() - began
            if self.step % self.config.log_every == 0 or self.step == self.config.steps:
                self._log_loss()
            show(self.step, self.last_loss)
            if self.step % self.config.checkpoint_every == 0:
                self.save()
            self._poll()
        # Early stopping may fall between two log rows.
        if self.loss_steps:
            self._log_loss()
        self.save()

    def is_done(self) -> bool:
        """Return whether training ends at this step. Evaluates first where an evaluation is due."""
        if self.step == self.config.steps:
            return True
        if self.step % self.plan.config.eval.every == 0 and self.measured_at != self.step:
            self._evaluate()
        stop = self.config.stop_below is not None and self.below >= self.config.patience
        if stop:
            logger.info("in-domain error stayed within train.stop_below: stopped at %d", self.step)
        return stop

    def train_step(self) -> None:
        """Takes one optimizer step on the next training batch."""
        microbatches, loss = self.next_microbatches(), 0.0
        total = sum(int(loss_mask.sum()) for _, loss_mask, _ in microbatches)
        for batch, loss_mask, pos in microbatches:
            with self.model.autocast(self.config.precision):
                part = sum_loss(self.model, batch, loss_mask, pos.to(self.device)) / total
            torch.autograd.backward(part)
            loss += float(part.detach())
        norm = float(self.optimizer.clip())
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise self._not_finite(f"the loss ({loss}) or its gradient ({norm})", self.step + 1)
        self.optimizer.step(learning_rate(self.config, self.step))
        self.step += 1
        self.loss_sum += loss
        self.loss_steps += 1

    def next_microbatches(self) -> list[tuple[Batch, Bools, Tensor]]:
        """Return the next training batch, split into ``train.accumulate`` parts: each with the mask
        of the loss (B, T), and the positions of all tokens (1 or B, T).

        Raises:
            RunError: none of its answers is scored.
        """
        batch, cfg = self.data.batch(self.step), self.config
        if self.plan.positions.is_random:
            # A new generator takes as long as everything else here.
            self.positions_rng = generator(self.plan.config.seed, "train positions", self.step)
        positions = self.plan.positions.of_batch(self.positions_rng, batch, training=True)
        loss_mask = batch.loss_mask(self.plan.task.loss_on)
        if not loss_mask.any():
            raise RunError(
                f"no answer is scored in the training batch of step {self.step + 1}: raise "
                f"train.batch_size={cfg.batch_size}, set task.loss_on=all, or change the task"
            )
        microbatches = []
        for rows in np.array_split(np.arange(len(batch)), cfg.accumulate):
            pos = torch.from_numpy(positions if len(positions) == 1 else positions[rows])
            microbatches.append((batch.take(rows), loss_mask[rows], pos))
        return microbatches

    def _log_loss(self) -> None:
        self.last_loss = self.loss_sum / self.loss_steps
        self.loss_sum, self.loss_steps = 0.0, 0
        self.log(
            {
                "step": self.step,
                "train/loss": self.last_loss,
                "train/lr": learning_rate(self.config, self.step - 1),
                "time/train_s": self.seconds,
            }
        )

    def _evaluate(self) -> None:
        """Evaluates on the first sequences of every split, and counts for early stopping."""
        row: dict[str, Any] = {"step": self.step}
        for split in self.evaluator.sets:
            n = self.plan.sequences(split, self.plan.config.eval.quick_sequences)
            measured = compute_metrics(self.evaluator.answers(split, n))
            row |= {metric_name(split, k): measured[k] for k in TABLED if k in measured}
        self.model.train()
        self.log(row)
        self.measured_at = self.step
        limit, error = self.config.stop_below, row[metric_name(IN_DOMAIN, "error")]
        self.below = self.below + 1 if limit is not None and error <= limit else 0

    def _poll(self) -> None:
        if (stop := self.get_interrupt()) is not None:
            self.save()
            raise stop

    def _not_finite(self, what: str, step: int) -> RunError:
        state = "no checkpoint was written yet"
        if self.folder.checkpoint.exists():
            state = f"the last good checkpoint is kept, {self.folder.checkpoint}"
        return RunError(
            f"{what} is not finite at step {step} (train.lr={self.config.lr}, "
            f"train.clip={self.config.clip}): lower train.lr, or set a lower train.clip; {state}"
        )
