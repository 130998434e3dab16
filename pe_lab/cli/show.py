"""``pe-lab show``: the choices that exist, or the sequences of a task.

    pe-lab show                              every choice, one line each
    pe-lab show pe experiment                these groups only
    pe-lab show task=flipflop                three sequences of each split, with the answers that
                                             are scored below their tokens
    pe-lab show task=flipflop task.length=16 split=sparse n=1     with keys of the run
    pe-lab show task=copy split=long_x2 to=long.jsonl             the sequences as a file
    pe-lab show task=copy split=train n=1000 seed=1 to=train.jsonl

A file is JSON Lines: a header, then one sequence per line with tokens, targets and what is scored.
Any task reads it back: 'task.files={long_x2: long.jsonl}'. Without n it holds what a run with these
keys measures (split=train: 1000 sequences, or all of task.train_sequences). Existing files are
never overwritten. --config-dir FOLDER adds your tasks.
"""

import inspect
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt
from rich.text import Text

from pe_lab import __version__
from pe_lab.cli.train import checked
from pe_lab.config.schema import Config
from pe_lab.core.config_dir import CHOICES, choices
from pe_lab.core.console import console
from pe_lab.core.errors import UsageError, check_known
from pe_lab.core.files import write_output
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.options import CommaSeparated, Line
from pe_lab.core.task import FORMAT, SUFFIX, TRAIN, Batch, Task, encode_sequences
from pe_lab.core.validation import find_class

SEQUENCES, TRAINED = 3, 1000
"""Sequences shown, and sequences of split=train in a file, where n is not given."""
MOST_TOKENS = 512
"""Tokens shown of one sequence."""


def show(
    line: Line,
    *groups: str,
    split: CommaSeparated[str] | None = None,
    n: PositiveInt | None = None,
    to: Path | None = None,
    **keys: str,
) -> None:
    """Print choices or sequences, or write a file of sequences.

    Raises:
        UsageError: a wrong option, key, group or split, or the file exists.
        RunError: the file cannot be written.
    """
    if all("=" not in word for word in line.words):
        return print_choices(groups, line.config_dir)
    if groups:
        raise UsageError(f"show {groups[0]}: give key=value, or names of groups alone")
    config, task = task_of(line, keys)
    splits = split or ([IN_DOMAIN] if to else task.evaluated())
    known = [*task.evaluated(), *([TRAIN] if to else [])]
    check_known("show split={}: the task has no such split", splits, known)
    # Imported here: torch takes a second.
    from pe_lab.train.batches import check_memory

    sizes = [(task.split(name).n_tokens, n or (TRAINED if to else SEQUENCES)) for name in splits]
    check_memory("show", sizes, 0, "draw fewer sequences, or shorter ones")
    if to is None:
        for name in splits:
            print_sequences(task, name, n or SEQUENCES)
        return None
    if to.suffix != SUFFIX or to.exists() or len(splits) > 1:
        raise UsageError(
            f"show to={to}: give one split, and a new file of JSON Lines, "
            f"to={to.with_suffix(SUFFIX)}; existing files are not overwritten"
        )
    batch = draw_sequences(config, task, splits[0], n)
    header = {
        "pe_lab_data": FORMAT,
        "version": __version__,
        "again": str(line),
        "task": config.task,
        "split": splits[0],
        "n": len(batch),
        "seed": config.seed,
        "batch_size": config.train.batch_size,
        "in_order": batch.in_order,
        "vocab": list(task.vocab),
    }
    write_output(to, encode_sequences(header, batch))
    read_with = shlex.quote(f"task.files={{{splits[0]}: {to}}}")
    print(f"{to}: {len(batch)} sequences; read it with {read_with}")
    return None


def task_of(line: Line, keys: Mapping[str, str]) -> tuple[Config, Task]:
    """The task that these keys of a run choose, and their whole configuration.

    Raises:
        UsageError: a wrong key, or none of them names a task.
    """
    # Imported here: torch takes a second.
    from pe_lab.train.plan import build_task

    if not {"task", "experiment"} & keys.keys():
        raise UsageError("show needs a task: give task=NAME, see pe-lab show task for the names")
    config = checked([*line.flags, *(f"{key}={value}" for key, value in keys.items())])
    return config, build_task(config.task)


def print_choices(groups: Sequence[str], config_dir: Path | None) -> None:
    """Print a line for each choice of these groups, or of all."""
    check_known("show {}: unknown group", groups, CHOICES)
    lines = {
        f"{group}={name}": summary_line(path.read_text("utf-8"))
        for group in groups or CHOICES
        for name, path in choices(group, config_dir).items()
    }
    width = max(map(len, lines))
    for choice, text in lines.items():
        console().print(f"{choice:<{width}}  {text}", soft_wrap=True)


def summary_line(text: str) -> str:
    """What a yaml file configures: the first line of its class's docstring, else of its header,
    with the number of jobs and the cost in a recipe's header."""
    target = re.search(r"^_target_: *(\S+)", text, flags=re.MULTILINE)
    if target is not None:
        found = find_class(target[1], f"_target_: {target[1]}", object)
        return (inspect.getdoc(found) or "").split("\n")[0]
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
    for row in range(len(batch)):
        for line in _lines(task, batch, row, console().width):
            console().print(line)
    console().print()


def _lines(task: Task, batch: Batch, row: int, width: int) -> Iterator[Text]:
    """A sequence in lines of this width: tokens, and below the scored ones the answers."""
    length, vocab = int(batch.real()[row].sum()), ["␣" if w == " " else w for w in task.vocab]
    shown = slice(0, min(length, MOST_TOKENS))
    tokens = [vocab[token] for token in batch.tokens[row, shown]]
    pairs = zip(batch.targets[row, shown], batch.scored[row, shown], strict=True)
    answers = [vocab[target] if scored else "" for target, scored in pairs]
    size = max(map(len, [*tokens, *answers]))
    many = max((width - 2) // (size + 1), 1)
    for start in range(0, len(tokens), many):
        for words, style in ((tokens, ""), (answers, "bold green")):
            padded = " ".join(word.ljust(size) for word in words[start : start + many])
            yield Text(f"  {padded}".rstrip(), style)
    if length > MOST_TOKENS:
        yield Text(f"  .. {length - MOST_TOKENS} more tokens", "dim")


def draw_sequences(config: Config, task: Task, split: str, n: int | None) -> Batch:
    """The sequences that a run measures, or is trained on in their order."""
    from pe_lab.train.batches import TrainData, evaluation_set
    from pe_lab.train.plan import count_sequences

    if split != TRAIN:
        trained, tokens = task.split(TRAIN).n_tokens, task.split(split).n_tokens
        usual = count_sequences(config.eval.sequences, tokens, trained)
        return evaluation_set(task, split, n or usual)
    data = TrainData(task, config.seed, config.train.batch_size)
    if data.finite is not None:
        whole = data.finite.take(np.arange(len(data.finite))[:n])
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
