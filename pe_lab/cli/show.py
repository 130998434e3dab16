"""``pe-lab show``: three sequences of each split of a task, with the answers that are scored.

    pe-lab show task=flipflop                    tokens, and the answer below each scored position
    pe-lab show task=flipflop task.length=16     other keys of the run, as in training
    pe-lab show task=flipflop splits=sparse      these splits only
    pe-lab show task=flipflop sequences=1        the number of sequences (3)

Nothing is trained or written. --config-dir FOLDER for your tasks.
"""

from collections.abc import Iterator, Sequence

from rich.text import Text

from pe_lab.cli.train import task_of
from pe_lab.core.console import console
from pe_lab.core.options import AtLeastOne, CommaSeparated, Options, parse, without_config_dir
from pe_lab.core.output import printable
from pe_lab.core.suggest import check_known
from pe_lab.core.task import Batch, Task

MOST_TOKENS = 512
"""Tokens shown of one sequence."""
SPACE = "␣"


class ShowOptions(Options, extra="allow"):
    """Every other key is one of the run."""

    command = "show"
    of_run = True

    splits: CommaSeparated[str] | None = None
    sequences: AtLeastOne = 3


def show(words: Sequence[str]) -> None:
    """Print the sequences.

    Raises:
        UsageError: a wrong option, key or split.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(ShowOptions, rest)
    _, task = task_of(options, config_dir)
    # Imported here: torch takes a second.
    from pe_lab.train.batches import evaluation_set

    check_known("show splits={}: the task has no such split", options.splits, task.evaluated())
    for split in options.splits or task.evaluated():
        changes = " ".join(f"{k}={v}" for k, v in task.splits.get(split, {}).items())
        shown = task.split(split)
        batch = evaluation_set(task, split, options.sequences)
        title = f"{split}{f' ({changes})' if changes else ''}: {shown.n_tokens} tokens, "
        console().print(Text(f"{title}{_scored(batch)} scored", "bold"))
        for row in range(len(batch)):
            for line in _lines(shown, batch, row, console().width):
                console().print(line)
        console().print()


def _scored(batch: Batch) -> str:
    """How many answers of a sequence are scored: ``3``, or ``1 to 4``."""
    counts = batch.scored.sum(1).tolist()
    return f"{min(counts)}" + (f" to {max(counts)}" if min(counts) != max(counts) else "")


def _lines(task: Task, batch: Batch, row: int, width: int) -> Iterator[Text]:
    """A sequence in lines of this width: tokens, and below the scored ones the answers."""
    length = int(batch.real()[row].sum())
    vocab = [SPACE if word == " " else printable(word) for word in task.vocab]
    read = [vocab[token] for token in batch.tokens[row, :length]]
    answers = [
        vocab[token] if scored else ""
        for token, scored in zip(batch.targets[row], batch.scored[row], strict=True)
    ]
    start = 0
    while start < min(length, MOST_TOKENS):
        cells: list[tuple[str, str]] = []
        used = 2
        for pair in zip(read[start:MOST_TOKENS], answers[start:MOST_TOKENS], strict=False):
            size = max(map(len, pair))
            used += size + 1
            if cells and used > width:
                break
            cells.append((pair[0].ljust(size), pair[1].ljust(size)))
        start += len(cells)
        yield Text("  " + " ".join(token for token, _ in cells))
        yield Text("  " + " ".join(answer for _, answer in cells).rstrip(), "bold green")
    if length > MOST_TOKENS:
        left = sum(map(bool, answers[MOST_TOKENS:length]))
        yield Text(f"  .. {length - MOST_TOKENS} more tokens, {left} of them scored", "dim")
