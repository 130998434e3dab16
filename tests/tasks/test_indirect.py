"""indirect against a plain loop from the rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.indirect import Indirect


def answer_of(words):
    """The letters, the shift and the letter asked for, read from the words of a question."""
    first = words.index(",")
    letters, source = words[:first], words[first + 1]
    assert words[first + 2] == ","
    last = len(words) - 1 - words[::-1].index(",")
    shift = int("".join(words[first + 3 : last]))
    place = next(i for i, letter in enumerate(letters) if letter == source) + shift
    assert 0 <= place < len(letters)
    return letters, shift, place


@given(
    fewest=st.integers(13, 30),
    more=st.integers(0, 10),
    low=st.integers(0, 12),
    more_shift=st.integers(0, 12),
    seed=st.integers(0, 2**32),
)
def test_rule(sentences, fewest, more, low, more_shift, seed):
    high = min(low + more_shift, fewest - 1)
    task = Indirect(
        splits={},
        min_letters=fewest,
        max_letters=fewest + more,
        n_symbols=60,
        min_shift=low,
        max_shift=high,
    )
    batch = task.sample(generator(seed), 8)
    for row, (words, scored, answers) in enumerate(sentences(task, batch)):
        letters, shift, place = answer_of(words[:-1])
        assert fewest <= len(letters) <= fewest + more
        assert len(set(letters)) == len(letters)
        assert low <= abs(shift) <= high
        assert answers == [letters[place]] == [words[-1]]
        assert scored == [len(words) - 2]
        assert batch.tags["shift"][row, scored[0]] == abs(shift)
        assert batch.tags["distance"][row, scored[0]] == scored[0] - place


def test_shifts_and_letters_are_uniform(assert_share):
    task = Indirect(splits={}, min_letters=5, max_letters=5, n_symbols=5, min_shift=1, max_shift=2)
    batch = task.sample(generator(1), 20_000)
    plus = batch.tokens[:, 8] == task.vocab.index("+")
    assert_share(plus.sum(), 20_000, 1 / 2)
    two = batch.tokens[:, 9] == task.vocab.index("2")
    assert_share((plus & two).sum(), 20_000, 1 / 4)
    for letter in np.bincount(batch.targets[:, -1], minlength=5)[:5]:
        assert_share(letter, 20_000, 1 / 5)
    # From the first of three places, two to the right.
    asked = batch.targets[:, -1:] == batch.tokens[:, :5]
    for place in (2, 3, 4):
        assert_share(asked[plus & two, place].sum(), int((plus & two).sum()), 1 / 3)


def test_drawing(drawn):
    words, _, answers = drawn(
        Indirect(splits={}, min_letters=10, max_letters=10, n_symbols=52, min_shift=0, max_shift=4)
    )
    letters, shift, place = answer_of(words[:-1])
    assert (len(letters), shift, letters[place]) == (10, 4, answers[0])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_letters": 200}, r"max_letters is 200, but task.n_symbols, 64, .* to 200 or more"),
        (
            {"max_shift": 4},
            r"beyond task.min_letters=4 letters: lower it to 3 .*task.min_letters to 5",
        ),
        ({"min_shift": 5}, r"task.min_shift is 5, more than task.max_shift, 3"),
        ({"min_letters": 9}, r"task.min_letters is 9, more than task.max_letters, 8"),
    ],
)
def test_sizes_that_do_not_fit(load, keys, message):
    with pytest.raises(ValueError, match=message):
        load("indirect", **{"splits": {}, **keys})
