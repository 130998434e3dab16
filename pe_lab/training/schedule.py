"""Learning-rate schedules."""

import math

from pe_lab.config.schema import TrainConfig


def learning_rate(cfg: TrainConfig, step: int) -> float:
    """The learning rate of a step, counted from 0: linear warm-up over ``cfg.warmup`` steps, then
    ``cfg.schedule``, which would reach zero at step ``cfg.steps``."""
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    progress = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    if cfg.schedule == "cosine":
        return cfg.lr * (1 + math.cos(math.pi * progress)) / 2
    return cfg.lr * (1 - progress) if cfg.schedule == "linear" else cfg.lr
