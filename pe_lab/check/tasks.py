"""The contract of a task: one function for each point, which takes the task."""

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from pe_lab.check.base import (
    ROPE,
    ContractError,
    NotClaimedError,
    Section,
    hold,
    loss,
    model,
    other_values,
    sequential,
    shown,
    tokens,
)
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Task
from pe_lab.train.batches import BATCHES_A_DRAW, TrainData, evaluation_set
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
    """Arrays have one shape, stay within length and vocabulary, and have something to score."""
    vocab = task.vocab
    if len(set(vocab)) < len(vocab):
        twice = next(word for word in vocab if vocab.count(word) > 1)
        raise ContractError(f"the vocabulary has {twice!r} twice")
    seen: set[int] = set()
    for name in task.evaluated():
        split, batch = task.split(name), drawn(task, name)
        hold(
            split.vocab == vocab,
            f"{name} has another vocabulary: words that a split needs are in "
            "the vocabulary from the start",
        )
        hold(
            batch.tokens.shape == batch.targets.shape == batch.scored.shape,
            f"{name}: tokens {batch.tokens.shape}, targets {batch.targets.shape} and scored "
            f"{batch.scored.shape} differ in shape",
        )
        kinds = [batch.tokens.dtype, batch.targets.dtype, batch.scored.dtype]
        hold(
            kinds == [np.int64, np.int64, np.bool_],
            f"{name}: the types are {kinds}, not int64, int64 and bool",
        )
        hold(
            batch.tokens.shape[1] <= split.n_tokens,
            f"{name} draws {batch.tokens.shape[1]} tokens, more than its n_tokens, "
            f"{split.n_tokens}",
        )
        ids = np.concatenate([batch.tokens.ravel(), batch.targets.ravel()])
        hold(
            ids.min() >= 0 and ids.max() < len(vocab),
            f"{name} draws the tokens {ids.min()} to {ids.max()}: the vocabulary has 0 to "
            f"{len(vocab) - 1}",
        )
        hold(
            not (batch.scored & ~batch.real()).any(),
            f"{name} scores padding, beyond the lengths of its sequences",
        )
        hold(bool(batch.scored.any()), f"{name} has nothing to score in {len(batch)} sequences")
        seen |= set(ids.tolist())
    unseen = len(vocab) - len(seen)
    more = f", {unseen} of them not drawn in {N} sequences a split" if unseen else ""
    return f"{len(task.evaluated())} splits, {len(vocab)} words{more}"


def same_batch(task: Task) -> str:
    """A batch depends on the generator that is passed, and on nothing else."""
    if task.stored("train") is not None:
        raise NotClaimedError("its sequences are read from a file")
    state = np.random.get_state()
    found = [digest(task.sample(generator(seed), N)) for seed in (0, 1)]
    np.random.seed(1)
    again = digest(task.sample(generator(0), N))
    np.random.set_state(state)
    hold(again == found[0], "the same generator draws another batch: use rng alone")
    hold(found[0] != found[1], "another generator draws the same batch: use rng")
    return f"{N} sequences are the same twice, and others with another seed"


def splits_differ(task: Task) -> str:
    """The splits and training draw different sequences."""
    sets = {split: digest(evaluation_set(task, split, 16)) for split in task.evaluated()}
    for split, found in sets.items():
        twin = next((s for s, d in sets.items() if d == found and s != split), None)
        if twin is not None:
            raise ContractError(f"{split} and {twin} have the same sequences")
    hold(
        digest(TrainData(task, 0, 16).batch(0)) not in sets.values(),
        "training draws the sequences of a split",
    )
    rules = {split: digest(drawn(task, split)) for split in task.evaluated()}
    for split, found in rules.items():
        hold(
            split == IN_DOMAIN or found != rules[IN_DOMAIN],
            f"{split} is the task unchanged: its keys change nothing",
        )
    return f"{', '.join(sets)}: all of them differ"


def not_given_away(task: Task) -> str:
    """The answer is not always the token read at its place, nor always the same word."""
    for split in task.evaluated():
        batch = drawn(task, split)
        answers, read = batch.targets[batch.scored], batch.tokens[batch.scored]
        hold(
            len(answers) < 2 or bool((answers != read).any()),
            f"in {split} every answer is the token that is read at its place",
        )
        hold(
            len(answers) < 2 or bool((answers != answers[0]).any()),
            f"in {split} every answer is {task.vocab[answers[0]]!r}",
        )
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
        hold(
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
    hold(
        digest(drawn(task.at_length(n), IN_DOMAIN)) == digest(drawn(task, IN_DOMAIN)),
        f"at_length({n}), its length, draws other sequences",
    )
    try:
        longer = task.at_length(2 * n)
    except ValueError as error:
        raise NotClaimedError(str(error)) from None
    hold(longer.vocab == task.vocab, f"at_length({2 * n}) has another vocabulary")
    hold(n < longer.n_tokens <= 2 * n, f"at_length({2 * n}) has {longer.n_tokens} tokens")
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
            hold(
                bool((places == np.arange(end - len(places), end)).all()),
                f"generates is True, but in {split} answers are at {places.tolist()} of {end} "
                "tokens",
            )
    return "in every split the answers are one run at the end"


def position_ids(task: Task) -> str:
    """The batch has ids for each axis of ``position_axes``, within its size."""
    if not task.position_axes:
        raise NotClaimedError("it gives none")
    for name in task.evaluated():
        split, batch = task.split(name), drawn(task, name)
        hold(
            set(split.position_axes) == set(batch.positions),
            f"{name}: position_axes has {sorted(split.position_axes)}, the batch "
            f"{sorted(batch.positions)}",
        )
        for axis, size in split.position_axes.items():
            ids = batch.positions[axis]
            hold(
                ids.shape == batch.tokens.shape and ids.min() >= 0 and ids.max() < size,
                f"{name}: {axis} has {ids.shape} ids from {ids.min()} to {ids.max()}, not "
                f"{batch.tokens.shape} below {size}",
            )
    return f"{', '.join(task.position_axes)}: within their sizes in every split"


SHARE = 0.02
"""The most that drawing may take of a training step."""


def every_key(section: Section) -> str:
    """Every key changes what is drawn, or the vocabulary, at one of its other values.

    One suffices: raising a limit that nothing reaches changes nothing.
    """
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
    hold(not (idle and not untried), f"{', '.join(idle)}: nothing that is drawn changes")
    if idle:
        raise NotClaimedError(f"{', '.join(idle)}: nothing changes, perhaps beside others; {left}")
    if not done:
        raise NotClaimedError(left if untried else "it has no keys")
    return "; ".join([f"tried {', '.join(done)}", *([left] if untried else [])])


def share_of_a_step(task: Task, batch_size: int = 32) -> str:
    """Processor time of drawing a batch as a share of a training step of the default model."""
    if task.stored("train") is not None:
        raise NotClaimedError("its sequences are read from a file")
    n = task.split("train").n_tokens
    sizes: dict[str, Any] = {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "train_len": n,
        "max_len": n,
    }
    built = model(ROPE, trunk={"d_ff": None}, **sizes).train()
    seen, pos = tokens(batch_size, n), sequential(n)

    def train() -> None:
        built.zero_grad(set_to_none=True)
        torch.autograd.backward(loss(built.unembed(built(seen, pos))))

    def draw_batches() -> None:
        task.sample(generator(0), BATCHES_A_DRAW * batch_size)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = [(_seconds(train), _seconds(draw_batches)) for _ in range(6)]
    finally:
        torch.set_num_threads(threads)
    # The first of either fills caches.
    step, draw = (statistics.median(taken[1:]) for taken in zip(*times, strict=True))
    draw /= BATCHES_A_DRAW
    found = (
        f"{100 * draw / step:.1f} % of a training step ({1e3 * draw:.2f} of {1e3 * step:.0f} ms, "
        f"batch {batch_size})"
    )
    hold(
        draw <= SHARE * step, f"{found}, more than {100 * SHARE:.0f} %: draw all sequences at once"
    )
    return found


def _seconds(work: Callable[[], None]) -> float:
    """The processor time of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began
