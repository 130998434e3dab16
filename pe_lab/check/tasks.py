"""The contract of a task: one function for each point, which takes the task."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from pe_lab.check.base import (
    EVERY_KEY,
    NotClaimedError,
    Outcome,
    Section,
    outcome,
    require,
    try_keys,
)
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Task, encode_sequences
from pe_lab.train.batches import TrainData, evaluation_set
from pe_lab.train.plan import build_task

N = 64
"""How many sequences of a split are drawn."""
SHORT, MANY, ENOUGH = 24, 1000, 4
"""The longest of the short sequences, their number at a length, and the number of lengths."""


def content(task: Task, batch: Batch) -> bytes:
    """The vocabulary and everything in a batch, as a file has them."""
    return encode_sequences({"vocab": task.vocab}, batch)


def draw(task: Task, split: str) -> Batch:
    """Some sequences of a split, drawn or read from its file."""
    if (stored := task.stored(split)) is not None:
        return stored.take(np.arange(min(N, len(stored))))
    return task.split(split).sample(generator(0), N)


def shapes(task: Task) -> str:
    """Arrays have one shape, stay within length and vocabulary, and have something to score."""
    words = len(task.vocab)
    require(len(set(task.vocab)) == words, "the vocabulary has a word twice")
    for name in task.evaluated():
        split, batch = task.split(name), draw(task, name)
        require(split.vocab == task.vocab, f"{name} has another vocabulary")
        arrays = batch.tokens, batch.targets, batch.scored
        shapes, kinds = {a.shape for a in arrays}, [a.dtype for a in arrays]
        require(len(shapes) == 1, f"{name}: tokens, targets and scored have the shapes {shapes}")
        require(
            kinds == [np.int64, np.int64, np.bool_],
            f"{name}: the types are {kinds}, not int64, int64 and bool",
        )
        drawn = batch.tokens.shape[1]
        require(
            drawn <= split.n_tokens,
            f"{name} draws {drawn} tokens, more than its n_tokens, {split.n_tokens}",
        )
        ids = np.stack([batch.tokens, batch.targets])
        require(
            ids.min() >= 0 and ids.max() < words,
            f"{name} draws the tokens {ids.min()} to {ids.max()}, of a vocabulary of {words}",
        )
        require(not (batch.scored & ~batch.real()).any(), f"{name} scores padding")
        require(bool(batch.scored.any()), f"{name} has nothing to score in {len(batch)} sequences")
    return f"{len(task.evaluated())} splits, {words} words"


def same_batch(task: Task) -> str:
    """A batch depends on the generator that is passed, and on nothing else."""
    if task.stored("train") is not None:
        raise NotClaimedError("its sequences are read from a file")
    first, again, other = (content(task, task.sample(generator(n), N)) for n in (0, 0, 1))
    require(again == first, "the same generator draws another batch: use rng alone")
    require(first != other, "another generator draws the same batch: use rng")
    return f"{N} sequences are the same twice, and others with another seed"


def splits_differ(task: Task) -> str:
    """The splits and training draw different sequences, each split by another rule."""
    sets = {split: content(task, evaluation_set(task, split, 16)) for split in task.evaluated()}
    sets["training"] = content(task, TrainData(task, 0, 16).batch(0))
    require(len(set(sets.values())) == len(sets), f"two of {', '.join(sets)} have equal sequences")
    rules = {split: content(task, draw(task, split)) for split in task.evaluated()}
    same = [split for split in rules if split != IN_DOMAIN and rules[split] == rules[IN_DOMAIN]]
    require(not same, f"{', '.join(same)} is the task unchanged: its keys change nothing")
    return f"{', '.join(sets)}: all of them differ"


def not_given_away(task: Task) -> str:
    """The answer is not always the token read at its place, nor always the same word."""
    for split in task.evaluated():
        batch = draw(task, split)
        answers, read = batch.targets[batch.scored], batch.tokens[batch.scored]
        if len(answers) > 1:
            require(bool((answers != read).any()), f"in {split} every answer is the token read")
            require(
                bool((answers != answers[0]).any()),
                f"in {split} every answer is {task.vocab[answers[0]]!r}",
            )
    batch = draw(task, IN_DOMAIN)
    return f"in domain a constant guess gets {100 * task.guess(batch, batch):.0f} % wrong"


def derivable(task: Task) -> str:
    """The same tokens have the same answer. It is checked at the shortest lengths, where many
    sequences begin alike."""
    if task.contents():
        raise NotClaimedError("its sequences are those of a file")
    wrong = task.find_wrong_answer(draw(task, IN_DOMAIN))
    require(wrong is None, f"answer_from and holds_answer give other answers: {wrong}")
    compared = sum(map(compare_answers, islice(shortened(task), ENOUGH)))
    if not compared:
        raise NotClaimedError(f"of {MANY} short sequences no two begin alike to an answer")
    return f"{compared} answers after tokens that were read before, all the same as then"


def compare_answers(task: Task) -> int:
    """How many answers were compared with an earlier one after the same tokens; all are equal."""
    batch = task.sample(generator(2), MANY)
    known: dict[bytes, int] = {}
    for row, t in np.argwhere(batch.scored):
        read, answer = batch.tokens[row, : t + 1], int(batch.targets[row, t])
        require(
            known.setdefault(read.tobytes(), answer) == answer,
            f"after {[task.vocab[token] for token in read]} two sequences have other answers",
        )
    return int(batch.scored.sum()) - len(known)


def shortened(task: Task) -> Iterator[Task]:
    """The task at its shortest lengths with something to score, then at its own."""
    for length in range(1, min(SHORT, task.n_tokens)):
        with suppress(ValueError, UsageError):
            short = task.at_length(length)
            if short.sample(generator(0), N).scored.any():
                yield short
    yield task


def generated(task: Task) -> str:
    """With ``generates``, the answers of a sequence are its last tokens."""
    if not task.generates:
        raise NotClaimedError("generates is False")
    for split in task.evaluated():
        batch = draw(task, split)
        ends = batch.scored[:, :-1] & ~batch.scored[:, 1:] & batch.real()[:, 1:]
        require(
            not ends.any(),
            f"generates is True, but in {split} the answers are not the last tokens",
        )
    return "in every split the answers are one run at the end"


def every_key(section: Section) -> str:
    """Every key changes what is drawn, or the vocabulary, at one of its other values.

    One suffices: raising a limit that nothing reaches changes nothing.
    """
    start = build_task({**section, "splits": {}})
    before = content(start, draw(start, IN_DOMAIN))

    def changes(key: str, value: Any) -> bool | None:
        with suppress(UsageError, ValueError, OSError):
            task = build_task({**section, "splits": {}, key: value})
            return content(task, draw(task, IN_DOMAIN)) != before
        return None

    return try_keys({k: v for k, v in section.items() if k not in start.fixed}, changes, any)


CHECKS = {
    "shapes and vocabulary": shapes,
    "same rng, same batch": same_batch,
    "splits differ": splits_differ,
    "answers are not given away": not_given_away,
    "answers follow from what is read": derivable,
    "one run of answers at the end": generated,
}


def check_task(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of a task."""
    task = build_task(section)
    yield from (outcome(name, partial(check, task)) for name, check in CHECKS.items())
    yield outcome(EVERY_KEY, partial(every_key, section))
