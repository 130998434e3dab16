"""copy, reverse, selective_copy, sort, majority and kinds of letters against plain loops."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.copy import Copy
from pe_lab.tasks.majority import Majority
from pe_lab.tasks.reverse import Reverse
from pe_lab.tasks.selective_copy import SelectiveCopy
from pe_lab.tasks.sort import Sort
from pe_lab.tasks.termination import Termination


@given(
    n_copy=st.integers(1, 20),
    n_blank=st.integers(0, 20),
    n_symbols=st.integers(1, 26),
    seed=st.integers(0, 2**32),
)
def test_selective_copy(sentences, n_copy, n_blank, n_symbols, seed):
    task = SelectiveCopy(splits={}, n_copy=n_copy, n_blank=n_blank, n_symbols=n_symbols)
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape == (8, task.n_tokens)
    assert batch.lengths is None
    for words, scored, answers in sentences(task, batch):
        text, copy = words[: n_copy + n_blank], words[n_copy + n_blank + 1 :]
        assert words[n_copy + n_blank] == "|"
        assert text.count("_") == n_blank
        assert copy == answers == [word for word in text if word != "_"]
        assert scored == list(range(n_copy + n_blank, 2 * n_copy + n_blank))
        assert set(answers) <= set(task.vocab[:n_symbols])


def parts(task, words, scored):
    """The letters and the answer of a sequence; its frame and what is scored are checked."""
    bar = words.index("|")
    letters, answer = words[:bar], words[bar + 1 :]
    if not isinstance(task, Reverse) and task.bos_eos:
        assert letters.pop(0) == "<bos>"
        assert answer.pop() == "<eos>"
    assert not {"|", "<pad>", "<bos>", "<eos>"} & {*letters, *answer}
    assert scored == list(range(bar, len(words) - 1))
    return [task.vocab.index(w) for w in letters], [task.vocab.index(w) for w in answer]


@given(
    fewest=st.integers(1, 8),
    more=st.integers(0, 4),
    room=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_termination_has_room_behind_the_end(sentences, fewest, more, room, seed):
    keys = {"splits": {}, "min_letters": fewest, "max_letters": fewest + more, "n_symbols": 4}
    task = Termination(**keys, room=room)
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape[1] == task.n_tokens == 2 * (fewest + more) + 2 + room
    assert task.vocab[batch.targets[0, batch.lengths[0] - 1]] == task.end
    assert (batch.lengths <= task.n_tokens - room).all()
    for words, scored, _ in sentences(task, batch):
        letters, copied = parts(task, words, scored)
        assert copied == letters


RULES = [(Copy, list), (Sort, sorted), (Reverse, lambda letters: letters[::-1])]


@pytest.mark.parametrize(("cls", "rule"), RULES)
@given(
    fewest=st.integers(1, 12),
    more=st.integers(0, 8),
    spare=st.integers(0, 20),
    kind=st.sampled_from(["free", "unique", "imbalanced", "repeat"]),
    bos_eos=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_copy_sort_and_reverse(sentences, cls, rule, fewest, more, spare, kind, bos_eos, seed):
    p = 0.3 if kind in ("imbalanced", "repeat") else None
    keys = {} if cls is Reverse else {"letters": kind, "p": p, "bos_eos": bos_eos}
    n_symbols = fewest + more + spare + 1
    task = cls(
        splits={}, min_letters=fewest, max_letters=fewest + more, n_symbols=n_symbols, **keys
    )
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape == (8, task.n_tokens)
    assert (batch.lengths is None) == (more == 0)
    for words, scored, _ in sentences(task, batch):
        letters, answer = parts(task, words, scored)
        assert fewest <= len(letters) <= fewest + more
        assert max(letters) < task.n_symbols
        assert answer == rule(letters)
        if kind == "unique" and cls is not Reverse:
            assert len(set(letters)) == len(letters)


def test_shares_of_imbalanced_letters(assert_share):
    task = Copy(splits={}, min_letters=9, max_letters=9, n_symbols=3, letters="imbalanced", p=0.05)
    letters = task.sample(generator(2), 4000).tokens[:, :9]
    for symbol, p in enumerate((0.05, 0.475, 0.475)):
        assert_share((letters == symbol).sum(), letters.size, p)


@given(
    k=st.integers(1, 4),
    fewest=st.integers(1, 12),
    more=st.integers(0, 12),
    n_symbols=st.integers(2, 30),
    bos_eos=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_majority(sentences, k, fewest, more, n_symbols, bos_eos, seed):
    most = -(-fewest // k) * k + more
    task = Majority(
        splits={},
        min_letters=fewest,
        max_letters=most,
        n_symbols=n_symbols,
        interleaved=k,
        bos_eos=bos_eos,
    )
    for words, scored, _ in sentences(task, task.sample(generator(seed), 8)):
        letters, answer = parts(task, words, scored)
        assert fewest <= len(letters) <= most
        assert len(letters) % k == 0
        assert len(answer) == k
        for turn in range(k):
            counted = Counter(letters[turn::k]).most_common(2)
            assert answer[turn] == counted[0][0]
            assert len(counted) == 1 or counted[0][1] > counted[1][1]


def test_majority_of_two_symbols_counts_uniformly_without_a_tie(assert_share):
    for letters, counts in ((7, range(8)), (6, (0, 1, 2, 4, 5, 6))):
        task = Majority(splits={}, min_letters=letters, max_letters=letters, n_symbols=2)
        ones = task.sample(generator(3), 20_000).tokens[:, :letters]
        found = np.bincount(ones.sum(axis=1), minlength=letters + 1)
        for count in range(letters + 1):
            assert_share(found[count], 20_000, (count in counts) / len(counts))
        # In random order: of those with one 1, it is anywhere.
        assert_share(
            [place.sum() for place in ones[ones.sum(axis=1) == 1].T], found[1], 1 / letters
        )


def test_lengths_of_interleaved_sequences_are_those_of_the_published_code():
    """Its rounding, with Python's numbers: total / k, one off where that leaves the range."""
    task = Majority(splits={}, min_letters=3, max_letters=50, n_symbols=2, interleaved=3)
    _, found = task.draw(generator(0), np.arange(3, 51)[:, None])
    for total, number in zip(range(3, 51), found[:, 0], strict=True):
        length = round(total / 3)
        if length * 3 > 50:
            length -= 1
        if length * 3 < 3:
            length += 1
        assert number == length * 3
