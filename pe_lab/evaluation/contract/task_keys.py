"""That every key of a task is read, and what drawing takes."""

import statistics
import time

import torch

from pe_lab.common.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.core.task import Task
from pe_lab.evaluation.contract.choices import other_values, shown
from pe_lab.evaluation.contract.cost import ROPE, TrainingStep
from pe_lab.evaluation.contract.outcome import ContractError, NotClaimedError
from pe_lab.evaluation.contract.task_batches import digest, drawn
from pe_lab.evaluation.contract.tiny import Section
from pe_lab.training.batches import BATCHES_A_DRAW
from pe_lab.training.plan import build_task

SHARE = 0.02
"""The most that drawing may take of a training step."""


def every_key(section: Section) -> str:
    """Every key changes what is drawn, or the vocabulary, at one of its other values: a limit that
    nothing reaches changes nothing when it is raised."""
    base = build_task({**section, "splits": {}})
    before = digest(drawn(base, IN_DOMAIN))
    done: list[str] = []
    untried: list[str] = []
    idle: list[str] = []
    for key in section:
        if key == "_target_" or key in base.fixed:
            continue
        tried: dict[str, bool] = {}
        for value in other_values(section, key):
            try:
                changed = build_task({**section, "splits": {}, key: value})
                found = digest(drawn(changed, IN_DOMAIN))
            except (UsageError, ValueError, OSError):
                continue
            tried[shown(value)] = found != before or changed.vocab != base.vocab
        words = f"{key}={'|'.join(tried)}"
        if not tried:
            untried.append(key)
        else:
            (done if any(tried.values()) else idle).append(words)
    left = f"no other value to try of {', '.join(untried)}"
    if idle and not untried:
        raise ContractError(f"{', '.join(idle)}: nothing that is drawn changes")
    if idle:
        raise NotClaimedError(f"{', '.join(idle)}: nothing changes, perhaps beside others; {left}")
    if not done:
        raise NotClaimedError(left if untried else "it has no keys")
    return "; ".join([f"tried {', '.join(done)}", *([left] if untried else [])])


def share_of_a_step(task: Task, batch_size: int = 32) -> str:
    """Processor time of drawing a batch, of that of a training step of the default model."""
    if task.stored("train") is not None:
        raise NotClaimedError("its sequences are read from a file")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step = TrainingStep(ROPE, task.split("train").n_tokens, batch_size)
        trained, drew = [], []
        for number in range(6):
            trained.append(step())
            began = time.process_time()
            task.sample(generator(number), BATCHES_A_DRAW * batch_size)
            drew.append((time.process_time() - began) / BATCHES_A_DRAW)
    finally:
        torch.set_num_threads(threads)
    one, other = statistics.median(drew[1:]), statistics.median(trained[1:])
    found = (
        f"{100 * one / other:.1f} % of a training step ({1e3 * one:.2f} of {1e3 * other:.0f} ms, "
        f"batch {batch_size})"
    )
    if one > SHARE * other:
        raise ContractError(f"{found}, more than {100 * SHARE:.0f} %: draw all sequences at once")
    return found
