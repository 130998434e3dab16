"""The number of CPU threads of a run: the key ``threads`` and its value ``auto``."""

import torch

from pe_lab.training.trainer import Trainer

FLOP_PER_THREAD = 1.5e8
"""Of a training step. Measured with one and two threads on two idle cores of a Xeon (AVX-512,
torch 2.13), time of a step with one over that with two: 0.93 to 1.06 at 0.04 to 0.15 GFLOP, 1.09 to
1.20 at 0.3, 1.28 to 1.64 at 1 to 2, 1.6 to 1.9 above. More than two were not measured."""


def set_threads(trainer: Trainer, *, swept: bool) -> None:
    """Set the number of PyTorch's threads.

    ``auto`` is one in a sweep, whose jobs share the cores, and on a GPU; else one for each
    ``FLOP_PER_THREAD``, at most one a core that this process may use. A resumed run keeps the
    number of its last start: PyTorch's products differ with it in their last digits.

    Args:
        swept: whether the run is a job of a sweep.
    """
    threads = trainer.plan.config.threads
    if threads == "auto":
        threads = 1 if swept or trainer.device.type != "cpu" else _alone(trainer)
    torch.set_num_threads(threads)


def _alone(trainer: Trainer) -> int:
    from joblib import cpu_count  # type: ignore[import-untyped]

    cores = int(cpu_count(only_physical_cores=True))
    starts = trainer.folder.starts()
    previous = starts[-1].get("threads") if starts else None
    needed = previous or int(flop(trainer) / FLOP_PER_THREAD)
    return min(max(1, needed), cores)


def flop(trainer: Trainer) -> float:
    """Roughly the floating-point operations of a training step's products with weights."""
    weights = sum(p.numel() for p in trainer.model.parameters() if p.dim() >= 2)
    cfg = trainer.plan.config.train
    tokens = cfg.batch_size // cfg.accumulate * trainer.plan.dims.train_len
    return 6.0 * weights * tokens
