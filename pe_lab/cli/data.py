"""``pe-lab data``: writes the sequences that a run reads to a file.

    pe-lab data task=copy to=copy.jsonl           in_domain, as many as a run measures
    pe-lab data task=copy split=train n=1000 seed=1 to=train.jsonl
                                                  the first 1000 that a run with that seed is
                                                  trained on, in their order
    pe-lab data task=copy task.max_letters=8 split=long_x2 to=long.jsonl
                                                  keys of the run, as in training

The format is JSON Lines: a header that makes the file again, then one sequence per line with its
tokens, targets and what is scored. Any task reads it back with task.files={in_domain: copy.jsonl},
and a run with the same keys has the same numbers. A file of a measured split is refused as
task.files.train. Existing files are never overwritten. --config-dir FOLDER adds your tasks.

The sequences of a split are drawn together, so another n gives other sequences. Without n the file
holds what a run with these keys measures. With task.train_sequences the whole training set is
written, which the run shuffles.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from pe_lab import __version__
from pe_lab.cli.train import task_of
from pe_lab.core.batch import FORMAT, SUFFIX, encoded
from pe_lab.core.errors import UsageError, writing
from pe_lab.core.files import write_new_file
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.options import AtLeastOne, Options, parse, without_config_dir
from pe_lab.core.output import printable
from pe_lab.core.suggest import check_known
from pe_lab.core.task import TRAIN, Batch, Task

if TYPE_CHECKING:
    from pe_lab.config.schema import Config

TRAINED = 1000
"""Sequences of split=train where no number is named."""
BYTES_PER_TOKEN = 64
"""In memory, of a token with its target and the text of both."""


class DataOptions(Options, extra="allow"):
    """Every other key is one of the run."""

    command = "data"
    of_run = True

    to: str = Field(min_length=1, description="a new file: give to=FILE.jsonl")
    split: str = IN_DOMAIN
    n: AtLeastOne | None = None


def show(words: Sequence[str]) -> None:
    """Write the file.

    Raises:
        UsageError: a wrong option, key or split, or there is a file already.
        RunError: the file cannot be written.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(DataOptions, rest)
    path = Path(options.to)
    _check_path(path)
    config, task = task_of(options, config_dir)
    known = [TRAIN, *task.evaluated()]
    check_known("data split={}: the task has no such split", [options.split], known)
    batch, in_order = _sequences(config, task, options.split, options.n)
    header = {
        "pe_lab_data": FORMAT,
        "version": __version__,
        "again": shlex.join(["pe-lab", "data", *words]),
        "task": config.task,
        "split": options.split,
        "n": len(batch),
        "seed": config.seed,
        "batch_size": config.train.batch_size,
        "in_order": in_order,
        "vocab": list(task.vocab),
    }
    with writing(path, "another file"):
        write_new_file(path, encoded(header, batch))
    n, tokens = batch.tokens.shape
    print(
        printable(
            f"{path}: {n} sequences of {tokens} tokens, {int(batch.scored.sum())} answers scored; "
            f"read it with task.files={{{options.split}: {path}}}"
        )
    )


def _check_path(path: Path) -> None:
    if path.suffix != SUFFIX:
        raise UsageError(
            f"data to={path}: the format is JSON Lines, give to={path.with_suffix('.jsonl')}"
        )
    if path.exists() or path.is_symlink():
        raise UsageError(f"data to={path} is there already: name another file, or remove it")
    if not path.parent.is_dir():
        raise UsageError(f"data to={path}: there is no folder {path.parent}: make it first")


def _sequences(config: "Config", task: Task, split: str, n: int | None) -> tuple[Batch, bool]:
    """The sequences, and whether they are training batches in their order."""
    from pe_lab.train.batches import TrainData, evaluation_set
    from pe_lab.train.memory import refuse_beyond, sequences_of

    tokens, trained = task.split(split).n_tokens, task.split(TRAIN).n_tokens
    if split == TRAIN:
        number = TRAINED if n is None else n
    else:
        number = n or sequences_of(config.eval.sequences, tokens, trained)
    size = BYTES_PER_TOKEN * tokens * number
    refuse_beyond(f"n={number} of {tokens} tokens is too many", size, "give fewer")
    if split != TRAIN:
        return evaluation_set(task, split, number), False
    data = TrainData(task, config.seed, config.train.batch_size)
    if (finite := data.finite) is not None:
        if n is not None and n != len(finite):
            raise UsageError(
                f"data n={n}: the training set has {len(finite)} sequences, which a run shuffles: "
                "leave n out, or change task.train_sequences"
            )
        return finite.take(np.arange(len(finite))), bool(getattr(finite, "in_order", False))
    batches = [data.batch(i) for i in range(-(-number // config.train.batch_size))]
    return _joined(task, batches).take(slice(0, number)), True


def _joined(task: Task, batches: Sequence[Batch]) -> Batch:
    """The batches below one another, the narrower ones padded on the right."""
    width = max(batch.tokens.shape[1] for batch in batches)
    padding = task.vocab.index("<pad>") if "<pad>" in task.vocab else 0

    def join(arrays: Sequence[Any], value: int = 0) -> Any:
        sides = [((0, 0), (0, width - a.shape[1])) for a in arrays]
        return np.concatenate(
            [np.pad(a, s, constant_values=value) for a, s in zip(arrays, sides, strict=True)]
        )

    first = batches[0]
    return Batch(
        join([batch.tokens for batch in batches], padding),
        join([batch.targets for batch in batches], padding),
        join([batch.scored for batch in batches]),
        None
        if first.lengths is None
        else np.concatenate([b.lengths for b in batches if b.lengths is not None]),
        {name: join([batch.tags[name] for batch in batches]) for name in first.tags},
        {axis: join([batch.positions[axis] for batch in batches]) for axis in first.positions},
    )
