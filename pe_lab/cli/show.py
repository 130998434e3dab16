"""``pe-lab show``: the choices that exist, or the sequences of a task.

    pe-lab show                              every choice, one line each
    pe-lab show pe experiment                these groups only
    pe-lab show task=flipflop                three sequences of each split, with the answers that
                                             are scored below their tokens
    pe-lab show task=flipflop task.length=16 split=sparse n=1     with keys of the run
    pe-lab show task=copy split=long_x2 to=long.jsonl             the sequences as a file
    pe-lab show task=copy split=train n=1000 seed=1 to=train.jsonl

A file is JSON Lines: a header, then one sequence per line with tokens, targets and what is scored.
Any task reads it back: task.files={long_x2: long.jsonl}. Without n it holds what a run with these
keys measures (split=train: 1000 sequences, or all of task.train_sequences). Existing files are
never overwritten. --config-dir FOLDER adds your tasks.
"""

import inspect
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from hydra.utils import get_object
from rich.table import Table
from rich.text import Text

from pe_lab import __version__
from pe_lab.cli.train import task_of
from pe_lab.core.batch import FORMAT, SUFFIX, encode_sequences
from pe_lab.core.config_dir import CHOICES, choices
from pe_lab.core.console import console
from pe_lab.core.errors import UsageError, writing
from pe_lab.core.files import write_new_file
from pe_lab.core.options import AtLeastOne, CommaSeparated, Options, parse, without_config_dir
from pe_lab.core.suggest import check_known
from pe_lab.core.task import TRAIN, Batch, Task

if TYPE_CHECKING:
    from pe_lab.config.schema import Config

SEQUENCES, TRAINED = 3, 1000
"""Sequences shown, and sequences of split=train in a file, where n is not given."""
MOST_TOKENS = 512
"""Tokens shown of one sequence."""


class ShowOptions(Options, extra="allow"):
    """Every other key is one of the run."""

    command = "show"

    split: CommaSeparated[str] | None = None
    n: AtLeastOne | None = None
    to: Path | None = None


def show(words: Sequence[str]) -> None:
    """Print choices or sequences, or write a file of sequences.

    Raises:
        UsageError: a wrong option, key, group or split, or the file exists.
        RunError: the file cannot be written.
    """
    config_dir, rest = without_config_dir(words)
    if all("=" not in word for word in rest):
        return print_choices(rest)
    options = parse(ShowOptions, rest)
    config, task = task_of(options, config_dir)
    known = [*task.evaluated(), *([TRAIN] if options.to else [])]
    check_known("show split={}: the task has no such split", options.split, known)
    # Imported here: torch takes a second.
    from pe_lab.train.memory import min_bytes, refuse_beyond

    n = options.n or (TRAINED if options.to else SEQUENCES)
    longest = max(task.split(split).n_tokens for split in options.split or task.evaluated())
    refuse_beyond(f"n={n}", min_bytes(longest, n, 0), "draw fewer sequences, or shorter ones")
    if options.to is None:
        for split in options.split or task.evaluated():
            print_sequences(task, split, options.n or SEQUENCES)
        return None
    (split,) = options.split or ["in_domain"]
    batch = _draw(config, task, split, options.n)
    header = {
        "pe_lab_data": FORMAT,
        "version": __version__,
        "again": shlex.join(["pe-lab", "show", *words]),
        "task": config.task,
        "split": split,
        "n": len(batch),
        "seed": config.seed,
        "batch_size": config.train.batch_size,
        "in_order": batch.in_order,
        "vocab": list(task.vocab),
    }
    write_sequences(options.to, header, batch)
    read_back = f"read it with task.files={{{split}: {options.to}}}"
    print(f"{options.to}: {len(batch)} sequences; {read_back}")
    return None


def print_choices(groups: Sequence[str]) -> None:
    """Print a line for each choice of these groups, or of all."""
    check_known("show {}: unknown group", groups, CHOICES)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in ("choice", "what it is"):
        table.add_column(header, no_wrap=header == "choice")
    for group in groups or CHOICES:
        for name, path in choices(group).items():
            table.add_row(f"{group}={name}", summary_line(path.read_text("utf-8")))
    console().print(table)


def summary_line(text: str) -> str:
    """What a yaml file configures: the first line of its class's docstring, else of its header,
    with the number of jobs and the cost in a recipe's header."""
    target = (yaml.safe_load(text) or {}).get("_target_")
    if target is not None:
        return (inspect.getdoc(get_object(target)) or "").split("\n")[0]
    comments = (line[1:].strip() for line in text.splitlines() if line.startswith("#"))
    title = next((line for line in comments if not line.startswith("@package")), "")
    cost = re.search(r"^# cost: (.+?) for all (.+? jobs)", text, flags=re.MULTILINE)
    return f"{title} ({cost[2]}, {cost[1]})" if cost else title


def print_sequences(task: Task, split: str, n: int) -> None:
    """Print n sequences of a split: tokens, and the scored answers below them."""
    # Imported here: torch takes a second.
    from pe_lab.train.batches import evaluation_set

    changes = " ".join(f"{k}={v}" for k, v in task.splits.get(split, {}).items())
    batch = evaluation_set(task, split, n)
    tokens, scored = task.split(split).n_tokens, batch.scored.sum(1)
    counts = "to".join(f" {count} " for count in sorted({scored.min(), scored.max()})).strip()
    title = f"{split}{f' ({changes})' if changes else ''}: {tokens} tokens, {counts} scored"
    console().print(Text(title, "bold"))
    for row in range(n):
        for line in _lines(task, batch, row, console().width):
            console().print(line)
    console().print()


def _lines(task: Task, batch: Batch, row: int, width: int) -> Iterator[Text]:
    """A sequence in lines of this width: tokens, and below the scored ones the answers."""
    length = min(int(batch.real()[row].sum()), MOST_TOKENS)
    vocab = ["␣" if word == " " else word for word in task.vocab]
    cells: list[tuple[str, str]] = []
    for token, target, scored in zip(
        batch.tokens[row, :length], batch.targets[row], batch.scored[row], strict=False
    ):
        pair = vocab[token], vocab[target] if scored else ""
        size = max(map(len, pair))
        if 2 + sum(len(above) + 1 for above, _ in cells) + size > width:
            yield from _two_lines(cells)
            cells = []
        cells.append((pair[0].ljust(size), pair[1].ljust(size)))
    yield from _two_lines(cells)
    if (left := int(batch.real()[row].sum()) - length) > 0:
        yield Text(f"  .. {left} more tokens", "dim")


def _two_lines(cells: Sequence[tuple[str, str]]) -> Iterator[Text]:
    yield Text("  " + " ".join(token for token, _ in cells))
    yield Text("  " + " ".join(answer for _, answer in cells).rstrip(), "bold green")


def write_sequences(path: Path, header: dict[str, Any], batch: Batch) -> None:
    """Write a new file that ``task.files`` reads."""
    if path.suffix != SUFFIX:
        raise UsageError(
            f"show to={path}: the format is JSON Lines, give to={path.with_suffix(SUFFIX)}"
        )
    if path.exists():
        raise UsageError(f"show to={path}: the file exists and is not overwritten, give another")
    with writing(path, "another file"):
        write_new_file(path, encode_sequences(header, batch))


def _draw(config: "Config", task: Task, split: str, n: int | None) -> Batch:
    """The sequences that a run measures, or is trained on in their order."""
    from pe_lab.train.batches import TrainData, evaluation_set
    from pe_lab.train.plan import sequences_of

    if split != TRAIN:
        trained, tokens = task.split(TRAIN).n_tokens, task.split(split).n_tokens
        return evaluation_set(
            task, split, n or sequences_of(config.eval.sequences, tokens, trained)
        )
    data = TrainData(task, config.seed, config.train.batch_size)
    if data.finite is not None:
        whole = data.finite.take(np.arange(len(data.finite)))
        return replace(whole, in_order=getattr(data.finite, "in_order", False))
    n = n or TRAINED
    batches = [data.batch(i) for i in range(-(-n // config.train.batch_size))]
    padding = task.vocab.index("<pad>") if "<pad>" in task.vocab else 0
    return replace(_join(batches, padding).take(slice(0, n)), in_order=True)


def _join(batches: Sequence[Batch], padding: int) -> Batch:
    """The batches below one another, the narrower ones padded on the right."""
    width = max(batch.tokens.shape[1] for batch in batches)

    def join(arrays: Sequence[Any], value: int = 0) -> Any:
        return np.concatenate(
            [np.pad(a, ((0, 0), (0, width - a.shape[1])), constant_values=value) for a in arrays]
        )

    lengths = [batch.lengths for batch in batches if batch.lengths is not None]
    return Batch(
        join([batch.tokens for batch in batches], padding),
        join([batch.targets for batch in batches], padding),
        join([batch.scored for batch in batches]),
        np.concatenate(lengths) if lengths else None,
        {name: join([batch.tags[name] for batch in batches]) for name in batches[0].tags},
        {axis: join([batch.positions[axis] for batch in batches]) for axis in batches[0].positions},
    )
