"""What a task must keep, one function a point. Each takes the task."""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from pe_lab.common.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.core.task import Task
from pe_lab.evaluation.contract.outcome import ContractError, NotClaimedError
from pe_lab.evaluation.contract.task_batches import N, digest, drawn
from pe_lab.training.batches import TrainData, evaluation_set

SHORT, MANY, ENOUGH = 24, 1000, 4
"""The longest of the short sequences, their number at a length, and the number of lengths."""


def shapes(task: Task) -> str:
    """Arrays of one shape, within the length and the vocabulary, with something to score."""
    vocab = task.vocab
    if len(set(vocab)) < len(vocab):
        twice = next(word for word in vocab if vocab.count(word) > 1)
        raise ContractError(f"the vocabulary has {twice!r} twice")
    seen: set[int] = set()
    for name in task.evaluated():
        split, batch = task.split(name), drawn(task, name)
        if split.vocab != vocab:
            raise ContractError(f"{name} has another vocabulary: words that a split needs are in "
                                "the vocabulary from the start")  # fmt: skip
        if not batch.tokens.shape == batch.targets.shape == batch.scored.shape:
            raise ContractError(
                f"{name}: tokens {batch.tokens.shape}, targets {batch.targets.shape} and scored "
                f"{batch.scored.shape} differ in shape"
            )
        kinds = [batch.tokens.dtype, batch.targets.dtype, batch.scored.dtype]
        if kinds != [np.int64, np.int64, np.bool_]:
            raise ContractError(f"{name}: the types are {kinds}, not int64, int64 and bool")
        if batch.tokens.shape[1] > split.n_tokens:
            raise ContractError(
                f"{name} draws {batch.tokens.shape[1]} tokens, more than its n_tokens, "
                f"{split.n_tokens}"
            )
        ids = np.concatenate([batch.tokens.ravel(), batch.targets.ravel()])
        if ids.min() < 0 or ids.max() >= len(vocab):
            raise ContractError(
                f"{name} draws the tokens {ids.min()} to {ids.max()}: the vocabulary has 0 to "
                f"{len(vocab) - 1}"
            )
        if (batch.scored & ~batch.real()).any():
            raise ContractError(f"{name} scores padding, beyond the lengths of its sequences")
        if not batch.scored.any():
            raise ContractError(f"{name} has nothing to score in {len(batch)} sequences")
        seen |= set(ids.tolist())
    unseen = len(vocab) - len(seen)
    more = f", {unseen} of them not drawn in {N} sequences a split" if unseen else ""
    return f"{len(task.evaluated())} splits, {len(vocab)} words{more}"


def same_batch(task: Task) -> str:
    """A batch is a function of the generator that is passed, and of nothing else."""
    if task.stored("train") is not None:
        raise NotClaimedError("its sequences are read from a file")
    state = np.random.get_state()
    found = [digest(task.sample(generator(seed), N)) for seed in (0, 1)]
    np.random.seed(1)
    again = digest(task.sample(generator(0), N))
    np.random.set_state(state)
    if again != found[0]:
        raise ContractError("the same generator draws another batch: use rng alone")
    if found[0] == found[1]:
        raise ContractError("another generator draws the same batch: use rng")
    return f"{N} sequences are the same twice, and others with another seed"


def splits_differ(task: Task) -> str:
    """Each split draws other sequences than every other one, and than training does."""
    sets = {split: digest(evaluation_set(task, split, 16)) for split in task.evaluated()}
    for split, found in sets.items():
        twin = next((s for s, d in sets.items() if d == found and s != split), None)
        if twin is not None:
            raise ContractError(f"{split} and {twin} have the same sequences")
    if digest(TrainData(task, 0, 16).batch(0)) in sets.values():
        raise ContractError("training draws the sequences of a split")
    rules = {split: digest(drawn(task, split)) for split in task.evaluated()}
    for split, found in rules.items():
        if split != IN_DOMAIN and found == rules[IN_DOMAIN]:
            raise ContractError(f"{split} is the task unchanged: its keys change nothing")
    return f"{', '.join(sets)}: all of them differ"


def not_given_away(task: Task) -> str:
    """The answer is not always the token read at its place, nor always the same word."""
    for split in task.evaluated():
        batch = drawn(task, split)
        answers, read = batch.targets[batch.scored], batch.tokens[batch.scored]
        if len(answers) > 1 and (answers == read).all():
            raise ContractError(f"in {split} every answer is the token that is read at its place")
        if len(answers) > 1 and (answers == answers[0]).all():
            raise ContractError(f"in {split} every answer is {task.vocab[answers[0]]!r}")
    batch = drawn(task, IN_DOMAIN)
    wrong = task.guess(batch, batch)
    return f"in domain a constant guess gets {100 * wrong:.0f} % wrong"


def derivable(task: Task) -> str:
    """Sequences that begin alike have the same answer after the same tokens, at the shortest
    lengths of the task, where many do."""
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
    """How many answers are compared with one after the same tokens.

    Raises:
        ContractError: two of them differ.
    """
    batch, compared = task.sample(generator(2), MANY), 0
    known: dict[bytes, int] = {}
    for row, t in zip(*np.nonzero(batch.scored), strict=True):
        read, answer = batch.tokens[row, : t + 1], int(batch.targets[row, t])
        before = known.setdefault(read.tobytes(), answer)
        compared += 1
        if before != answer:
            raise ContractError(
                f"after {task.decode(read.tolist())!r} the answer is {task.vocab[answer]} in one "
                f"sequence and {task.vocab[before]} in another"
            )
    return compared - len(known)


def _shortened(task: Task) -> Iterator[Task]:
    """The task at its shortest lengths that have something to score, then as it is."""
    for length in range(1, min(SHORT, task.n_tokens)):
        with suppress(ValueError, UsageError):
            short = task.at_length(length)
            if short.sample(generator(0), N).scored.any():
                yield short
    yield task


def other_lengths(task: Task) -> str:
    """``at_length``: the same rule, no longer than what is asked for."""
    n = task.n_tokens
    if digest(drawn(task.at_length(n), IN_DOMAIN)) != digest(drawn(task, IN_DOMAIN)):
        raise ContractError(f"at_length({n}), its length, draws other sequences")
    try:
        longer = task.at_length(2 * n)
    except ValueError as error:
        raise NotClaimedError(str(error)) from None
    if longer.vocab != task.vocab:
        raise ContractError(f"at_length({2 * n}) has another vocabulary")
    if not n < longer.n_tokens <= 2 * n:
        raise ContractError(f"at_length({2 * n}) has {longer.n_tokens} tokens")
    return f"at_length({2 * n}) has {longer.n_tokens} tokens, at_length({n}) the same sequences"


def generated(task: Task) -> str:
    """With ``generates`` the answers of a sequence are one run at its end."""
    if not task.generates:
        raise NotClaimedError("generates is False")
    for split in task.evaluated():
        batch = drawn(task, split)
        for scored, real in zip(batch.scored, batch.real(), strict=True):
            places = np.flatnonzero(scored)
            end = int(real.sum())
            if len(places) and (places != np.arange(end - len(places), end)).any():
                raise ContractError(
                    f"generates is True, but in {split} answers are at {places.tolist()} of {end} "
                    "tokens"
                )
    return "in every split the answers are one run at the end"


def position_ids(task: Task) -> str:
    """The ids of each axis of ``position_axes``, within its size."""
    if not task.position_axes:
        raise NotClaimedError("it gives none")
    for name in task.evaluated():
        split, batch = task.split(name), drawn(task, name)
        if set(split.position_axes) != set(batch.positions):
            raise ContractError(
                f"{name}: position_axes has {sorted(split.position_axes)}, the batch "
                f"{sorted(batch.positions)}"
            )
        for axis, size in split.position_axes.items():
            ids = batch.positions[axis]
            if ids.shape != batch.tokens.shape or ids.min() < 0 or ids.max() >= size:
                raise ContractError(
                    f"{name}: {axis} has {ids.shape} ids from {ids.min()} to {ids.max()}, not "
                    f"{batch.tokens.shape} below {size}"
                )
    return f"{', '.join(task.position_axes)}: within their sizes in every split"
