"""The trainer: steps, measurements, checkpoints; stops and goes on at any step."""

import logging
import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pe_lab.common.errors import RunError
from pe_lab.common.metrics import IN_DOMAIN, TABLED, metric_name
from pe_lab.common.rng import generator, torch_seed
from pe_lab.common.task import Batch, Ints
from pe_lab.config.schema import TrainConfig
from pe_lab.store import checkpoint
from pe_lab.store.run_folder import RunFolder
from pe_lab.training.batches import TrainData
from pe_lab.training.generate import generated
from pe_lab.training.loss import Microbatch, summed_loss
from pe_lab.training.measure import Answers, answer, fixed_positions
from pe_lab.training.optimizer import Adam
from pe_lab.training.plan import Plan

logger = logging.getLogger("pe_lab")


def learning_rate(cfg: TrainConfig, step: int) -> float:
    """The rate of the step with this number (from 0): linear warm-up, then the schedule, which
    would reach zero at step ``cfg.steps``. A run shorter than its warm-up never gets beyond it."""
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    done = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    if cfg.schedule == "cosine":
        return cfg.lr * (1 + math.cos(math.pi * done)) / 2
    return cfg.lr * (1 - done) if cfg.schedule == "linear" else cfg.lr


@dataclass(frozen=True)
class Taken:
    """What became of a training step that was taken for a model among others.

    Args:
        norm: of the gradient, before it was clipped.
        seconds: this model's share of the time.
    """

    loss: float
    norm: float
    seconds: float


class RowLog(Protocol):
    """Where measured rows go."""

    @property
    def size(self) -> int:
        """Bytes written so far."""

    def write(self, row: dict[str, Any]) -> None: ...

    def sync(self) -> None:
        """Have the disk hold all rows."""


class Trainer:
    """Trains the planned model in a folder. Everything that a resumed run needs to go on
    bit for bit is in its checkpoint; batches and random positions are functions of the step.

    Args:
        sets: the fixed evaluation set of each split.
        stopping: asked often; what it returns is raised, once the checkpoint is written.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        folder: RunFolder,
        sets: dict[str, Batch],
        stopping: Callable[[], BaseException | None],
    ) -> None:
        self.plan, self.config = plan, plan.config.train
        self.folder, self.sets, self.stopping = folder, sets, stopping
        self.device = device
        self.model = plan.model().to(device)
        self.optimizer = Adam(self.config, self.model.parameters())
        self.data = TrainData(plan.task, plan.config.seed, self.config.batch_size)
        self.positions_rng = generator(plan.config.seed, "train positions", 0)
        self.step = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.loss_steps = 0
        self.last_loss = math.nan
        self.measured_at = 0
        self.below = 0
        self.seconds = 0.0
        self.metrics_bytes = 0
        self.log: RowLog
        torch.manual_seed(torch_seed(plan.config.seed, "dropout"))

    def resume(self) -> bool:
        """Go on from the folder's checkpoint; False where there is none."""
        if not self.folder.checkpoint.exists():
            return False
        state = checkpoint.load(self.folder.checkpoint)
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            for name in ("step", "loss_steps", "last_loss", "measured_at", "below", "seconds"):
                setattr(self, name, state[name])
            self.loss_sum.fill_(state["loss_sum"])
            self.metrics_bytes = state["metrics_bytes"]
            torch.set_rng_state(state["rng"])
            if self.device.type == "cuda" and state["rng_cuda"] is not None:
                torch.cuda.set_rng_state(state["rng_cuda"])
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise RunError(
                f"the checkpoint {self.folder.checkpoint} does not fit this run "
                f"({str(error).splitlines()[0]}): remove it to train the run from the start"
            ) from None
        return True

    def save(self) -> None:
        """Write the checkpoint, unless a parameter is no number: the last good one stays."""
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise self._not_a_number("a parameter")
        self.log.sync()
        cuda = self.device.type == "cuda"
        checkpoint.save(
            self.folder.checkpoint,
            {
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "rng": torch.get_rng_state(),
                "rng_cuda": torch.cuda.get_rng_state() if cuda else None,
                "loss_sum": float(self.loss_sum),
                "loss_steps": self.loss_steps,
                "last_loss": self.last_loss,
                "measured_at": self.measured_at,
                "below": self.below,
                "seconds": self.seconds,
                "metrics_bytes": self.log.size,
            },
        )
        self.folder.set_status("running", self.step, self.config.steps)

    def fit(self, log: RowLog, show: Callable[[int, float], None]) -> None:
        """Train to the last step, or until in-domain error has stayed below ``stop_below``.

        Args:
            show: called after every step with its number and the last logged loss.
        """
        for _ in self.stepwise(log, show):
            pass

    def stepwise(
        self, log: RowLog, show: Callable[[int, float], None]
    ) -> Generator["Trainer", Taken | None, None]:
        """``fit``, which yields the trainer before every step; who trains several models at once
        sends what became of the step, and with None the trainer takes it itself."""
        self.log = log
        while not self._done():
            taken = yield self
            if taken is None:
                began = time.perf_counter()
                self.train_step()
                self.seconds += time.perf_counter() - began
            else:
                self._check_finite(taken.loss, taken.norm)
                self._count(taken.loss)
                self.seconds += taken.seconds
            if self.step % self.config.log_every == 0 or self.step == self.config.steps:
                self._log_loss()
            show(self.step, self.last_loss)
            if self.step % self.config.checkpoint_every == 0:
                self.save()
            self._poll()
        # An early stop falls between two log lines. What is measured at the end is what the
        # checkpoint holds.
        if self.loss_steps:
            self._log_loss()
        self.save()

    def _done(self) -> bool:
        every = self.plan.config.eval.every
        if self.step == self.config.steps:
            return True
        if self.step and self.step % every == 0 and self.measured_at != self.step:
            self._measure_quickly()
        stop = self.config.stop_below is not None and self.below >= self.config.patience
        if stop:
            logger.info("in-domain error stayed below train.stop_below: stopped at %d", self.step)
        return stop

    def parts(self) -> list[Microbatch]:
        """What the next step trains on.

        Raises:
            RunError: no answer of it is scored.
        """
        cfg = self.config
        batch = self.data.batch(self.step)
        if self.plan.positions.drawn(training=True):
            # As long to make as all the rest here, so not for those who do not read it.
            self.positions_rng = generator(self.plan.config.seed, "train positions", self.step)
        n, t = batch.tokens.shape
        positions = self.plan.positions.sample(self.positions_rng, n, t, training=True)
        counted = self.plan.task.trained(batch)
        if not counted.any():
            raise RunError(
                f"no answer is scored in the training batch of step {self.step + 1}: raise "
                f"train.batch_size={cfg.batch_size}, set task.loss_on=all, or change the task"
            )
        parts = []
        for number, rows in enumerate(np.array_split(np.arange(n), cfg.accumulate)):
            pos = torch.from_numpy(positions if len(positions) == 1 else positions[rows])
            part = batch if len(rows) == n else batch.take(rows)
            key = torch_seed(self.plan.config.seed, "dropout", self.step, number)
            parts.append(Microbatch(part, counted[rows], pos, key))
        return parts

    def train_step(self) -> None:
        self.train_on(self.parts())

    def train_on(self, parts: list[Microbatch]) -> None:
        """One step."""
        cfg, rate = self.config, learning_rate(self.config, self.step)
        total = sum(int(part.counted.sum()) for part in parts)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in parts:
            part_loss = self.summed_loss(part)
            torch.autograd.backward(part_loss / total)
            loss += part_loss.detach() / total
        norm = self.optimizer.clip(cfg.clip)
        self._check_finite(float(loss), float(norm))
        self.optimizer.lr = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._count(loss)

    def summed_loss(self, part: Microbatch) -> Tensor:
        """Cross-entropy summed over the places of a part that count."""
        pos = part.pos.to(self.device)
        with self.autocast():
            return summed_loss(self.model, part.batch, part.counted, pos, part.key)

    def _check_finite(self, loss: float, norm: float) -> None:
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise self._not_a_number(f"the loss ({loss}) or its gradient ({norm})")

    def _count(self, loss: float | Tensor) -> None:
        self.step += 1
        self.loss_sum += loss
        self.loss_steps += 1

    def _log_loss(self) -> None:
        self.last_loss = float(self.loss_sum) / self.loss_steps
        self.loss_sum.zero_()
        self.loss_steps = 0
        rate = learning_rate(self.config, self.step - 1)
        row = {"train/loss": self.last_loss, "train/lr": rate, "time/train_s": self.seconds}
        self.log.write({"step": self.step, **row})

    def _measure_quickly(self) -> None:
        most = self.plan.config.eval.quick_sequences
        row: dict[str, Any] = {"step": self.step}
        for split in self.sets:
            measured = self.answers(split, self.plan.sequences(split, most)).measured()
            row |= {metric_name(split, k): measured[k] for k in TABLED if k in measured}
            if split == IN_DOMAIN:
                error = measured["error"]
        self.log.write(row)
        self.measured_at = self.step
        limit = self.config.stop_below
        self.below = self.below + 1 if limit is not None and error <= limit else 0

    def answers(self, split: str, n: int | None = None) -> Answers:
        """The model's answers to a split, or to its first n sequences, teacher-forced."""
        data, positions = self._measured_on(split, n)
        return answer(
            self.model,
            self.plan.task.split(split),
            data,
            positions,
            batch_tokens=self.plan.config.eval.batch_tokens,
            autocast=self.autocast,
            poll=self._poll,
        )

    def generated(self, split: str) -> Answers:
        """The answers that the model writes by itself."""
        data, positions = self._measured_on(split, None)
        tokens = self.plan.config.eval.batch_tokens
        return generated(
            self.model,
            data,
            positions,
            batch_tokens=tokens,
            autocast=self.autocast,
            poll=self._poll,
        )

    def _measured_on(self, split: str, n: int | None) -> tuple[Batch, Ints]:
        data = self.sets[split]
        positions = fixed_positions(self.plan.positions, split, *data.tokens.shape)
        if n is None:
            return data, positions
        first = slice(0, n)
        return data.take(first), positions if len(positions) == 1 else positions[first]

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the model runs."""
        half = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half)

    def _poll(self) -> None:
        stop = self.stopping()
        if stop is not None:
            self.save()
            raise stop

    def _not_a_number(self, what: str) -> RunError:
        kept = "no checkpoint was written yet"
        if self.folder.checkpoint.exists():
            kept = f"the last good checkpoint is kept, {self.folder.checkpoint}"
        return RunError(
            f"{what} is not finite at step {self.step + 1} (train.lr={self.config.lr}, "
            f"train.clip={self.config.clip}): lower train.lr or train.clip; {kept}"
        )
