"""The contract of a task: one function for each point, which takes the task."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from pe_lab.check.base import (
    NotClaimedError,
    Section,
    other_values,
    require,
    shown,
    tried_values,
)
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Task
from pe_lab.train.batches import TrainData, evaluation_set
from pe_lab.train.plan import build_task

N = 64
"""How many sequences of a split are drawn."""


def digest(batch: Batch) -> str:
    """SHA-256 of everything in a batch."""
    lengths = [] if batch.lengths is None else [batch.lengths]
    tags = [array for named in (batch.tags, batch.positions) for _, array in sorted(named.items())]
    parts = [batch.tokens, batch.targets, batch.scored, *lengths, *tags]
    shapes = repr([part.shape for part in parts]).encode()
    return hashlib.sha256(shapes + b"".join(p.tobytes() for p in map(_whole, parts))).hexdigest()


def _whole(array: Any) -> Any:
    return np.ascontiguousarray(array)


def drawn(task: Task, split: str, n: int = N, seed: int = 0) -> Batch:
    """Some sequences of a split, drawn or read from its file."""
    stored = task.stored(split)
    if stored is not None:
        return stored.take(np.arange(min(n, len(stored))))
    return task.split(split).sample(generator(seed), n)


SHORT, MANY, ENOUGH = 24, 1000, 4
"""The longest of the short sequences, their number at a length, and the number of lengths."""


def shapes(task: Task) -> str:
    """Arrays have one shape, stay within length and vocabulary, and have something to score; there
    are ids for each axis of ``position_axes``."""
    require(len(set(task.vocab)) == len(task.vocab), "the vocabulary has a word twice")
    for name in task.evaluated():
        split, batch = task.split(name), drawn(task, name)
        arrays = batch.tokens, batch.targets, batch.scored
        require(split.vocab == task.vocab, f"{name} has another vocabulary")
        shapes, kinds = {a.shape for a in arrays}, [a.dtype for a in arrays]
        require(len(shapes) == 1, f"{name}: tokens, targets and scored differ in shape: {shapes}")
        require(kinds == [np.int64, np.int64, np.bool_], f"{name}: the types are {kinds}")
        width = batch.tokens.shape[1]
        require(width <= split.n_tokens, f"{name} draws {width} tokens, n_tokens {split.n_tokens}")
        ids = np.stack([batch.tokens, batch.targets])
        inside = bool(ids.min() >= 0 and ids.max() < len(task.vocab))
        require(inside, f"{name} draws the tokens {ids.min()} to {ids.max()} of {len(task.vocab)}")
        require(not (batch.scored & ~batch.real()).any(), f"{name} scores padding")
        require(bool(batch.scored.any()), f"{name} has nothing to score in {len(batch)} sequences")
        for axis, size in split.position_axes.items():
            ids = batch.positions[axis]
            fits = ids.shape == batch.tokens.shape and bool(ids.min() >= 0 and ids.max() < size)
            require(fits, f"{name}: ids of {axis} are not {batch.tokens.shape} below {size}")
    return f"{len(task.evaluated())} splits, {len(task.vocab)} words"


def same_batch(task: Task) -> str:
    """A batch depends on the generator that is passed, and on nothing else."""
    if task.stored("train") is not None:
        raise NotClaimedError("its sequences are read from a file")
    state = np.random.get_state()
    found = [digest(task.sample(generator(seed), N)) for seed in (0, 1)]
    np.random.seed(1)
    again = digest(task.sample(generator(0), N))
    np.random.set_state(state)
    require(again == found[0], "the same generator draws another batch: use rng alone")
    require(found[0] != found[1], "another generator draws the same batch: use rng")
    return f"{N} sequences are the same twice, and others with another seed"


def splits_differ(task: Task) -> str:
    """The splits and training draw different sequences, and a split changes its rule."""
    sets = [digest(evaluation_set(task, split, 16)) for split in task.evaluated()]
    sets.append(digest(TrainData(task, 0, 16).batch(0)))
    require(len(set(sets)) == len(sets), "two splits, or one and training, have the same sequences")
    rules = {split: digest(drawn(task, split)) for split in task.evaluated()}
    same = [s for s, rule in rules.items() if s != IN_DOMAIN and rule == rules[IN_DOMAIN]]
    require(not same, f"{', '.join(same)} is the task unchanged: its keys change nothing")
    return f"{', '.join(rules)}: all of them differ"


def not_given_away(task: Task) -> str:
    """The answer is not always the token read at its place, nor always the same word."""
    for split in task.evaluated():
        batch = drawn(task, split)
        answers, read = batch.targets[batch.scored], batch.tokens[batch.scored]
        known = len(answers) > 1 and bool((answers == read).all() or (answers == answers[0]).all())
        require(not known, f"in {split} every answer is the token read at its place, or one word")
    batch = drawn(task, IN_DOMAIN)
    return f"in domain a constant guess gets {100 * task.guess(batch, batch):.0f} % wrong"


def derivable(task: Task) -> str:
    """The same tokens have the same answer. It is checked at the shortest lengths, where many
    sequences begin alike."""
    if task.contents():
        raise NotClaimedError("its sequences are those of a file")
    compared = lengths = 0
    for short in _shortened(task):
        found = _compared(short)
        compared, lengths = compared + found, lengths + bool(found)
        if lengths == ENOUGH:
            break
    if not compared:
        raise NotClaimedError(f"of {MANY} short sequences no two begin alike to an answer")
    return f"{compared} answers after tokens that were read before, all the same as then"


def _compared(task: Task) -> int:
    """How many answers were compared with an earlier one after the same tokens.

    Raises:
        ContractError: two of them differ.
    """
    batch, compared = task.sample(generator(2), MANY), 0
    known: dict[bytes, int] = {}
    for row, t in zip(*np.nonzero(batch.scored), strict=True):
        read, answer = batch.tokens[row, : t + 1], int(batch.targets[row, t])
        before = known.setdefault(read.tobytes(), answer)
        compared += 1
        require(
            before == answer,
            f"after {task.decode(read.tolist())!r} the answer is {task.vocab[answer]} in one "
            f"sequence and {task.vocab[before]} in another",
        )
    return compared - len(known)


def _shortened(task: Task) -> Iterator[Task]:
    """The task at its shortest lengths with something to score, then at its own."""
    for length in range(1, min(SHORT, task.n_tokens)):
        with suppress(ValueError, UsageError):
            short = task.at_length(length)
            if short.sample(generator(0), N).scored.any():
                yield short
    yield task


def other_lengths(task: Task) -> str:
    """``at_length`` keeps the rule and the vocabulary, and is no longer than asked for."""
    n = task.n_tokens
    require(
        digest(drawn(task.at_length(n), IN_DOMAIN)) == digest(drawn(task, IN_DOMAIN)),
        f"at_length({n}), its length, draws other sequences",
    )
    try:
        longer = task.at_length(2 * n)
    except ValueError as error:
        raise NotClaimedError(str(error)) from None
    require(longer.vocab == task.vocab, f"at_length({2 * n}) has another vocabulary")
    require(n < longer.n_tokens <= 2 * n, f"at_length({2 * n}) has {longer.n_tokens} tokens")
    return f"at_length({2 * n}) has {longer.n_tokens} tokens, at_length({n}) the same sequences"


def generated(task: Task) -> str:
    """With ``generates``, the answers of a sequence are its last tokens."""
    if not task.generates:
        raise NotClaimedError("generates is False")
    for split in task.evaluated():
        batch = drawn(task, split)
        for scored, real in zip(batch.scored, batch.real(), strict=True):
            places = np.flatnonzero(scored)
            end = int(real.sum())
            require(
                bool((places == np.arange(end - len(places), end)).all()),
                f"generates is True, but in {split} answers are at {places.tolist()} of {end} "
                "tokens",
            )
    return "in every split the answers are one run at the end"


def every_key(section: Section) -> str:
    """Every key changes what is drawn, or the vocabulary, at one of its other values.

    One suffices: raising a limit that nothing reaches changes nothing.
    """
    base = build_task({**section, "splits": {}})
    before, keys = (digest(drawn(base, IN_DOMAIN)), base.vocab), section.keys() - base.fixed

    def changes(key: str) -> list[str]:
        tried = {}
        for value in other_values(section, key):
            with suppress(UsageError, ValueError, OSError):
                changed = build_task({**section, "splits": {}, key: value})
                tried[shown(value)] = (digest(drawn(changed, IN_DOMAIN)), changed.vocab) != before
        require(not tried or any(tried.values()), f"{key}: nothing that is drawn changes")
        return list(tried)

    return tried_values({key: value for key, value in section.items() if key in keys}, changes)
