"""selective_copy against a copy by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.selective_copy import SelectiveCopy


def check(words, scored, answers, n_copy, n_blank):
    text, copy = words[: n_copy + n_blank], words[n_copy + n_blank + 1 :]
    assert words[n_copy + n_blank] == "|"
    assert text.count("_") == n_blank
    assert copy == answers == [word for word in text if word != "_"]
    assert scored == list(range(n_copy + n_blank, 2 * n_copy + n_blank))


@given(
    n_copy=st.integers(1, 20),
    n_blank=st.integers(0, 20),
    n_symbols=st.integers(1, 26),
    seed=st.integers(0, 2**32),
)
def test_rule(sentences, n_copy, n_blank, n_symbols, seed):
    task = SelectiveCopy(splits={}, n_copy=n_copy, n_blank=n_blank, n_symbols=n_symbols)
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape == (8, task.n_tokens)
    assert batch.lengths is None
    for words, scored, answers in sentences(task, batch):
        check(words, scored, answers, n_copy, n_blank)
        assert set(answers) <= set(task.vocab[:n_symbols])


def test_letters_and_places_are_uniform(assert_share):
    task = SelectiveCopy(splits={}, n_copy=4, n_blank=2, n_symbols=16)
    tokens = task.sample(generator(1), 20_000).tokens
    is_letter = tokens[:, :6] < 16
    for place in range(6):
        assert_share(is_letter[:, place].sum(), 20_000, 4 / 6)
    patterns = np.unique(is_letter, axis=0, return_counts=True)[1]
    assert len(patterns) == 15
    for count in patterns:
        assert_share(count, 20_000, 1 / 15)
    for count in np.bincount(tokens[:, :6][is_letter]):
        assert_share(count, 80_000, 1 / 16)


def test_drawing(drawn):
    check(*drawn(SelectiveCopy(splits={}, n_copy=4, n_blank=4, n_symbols=16)), 4, 4)


def test_at_length_without_blanks(load):
    task = load("selective_copy", n_blank=0, splits={}).at_length(49)
    assert (task.n_copy, task.n_blank) == (24, 0)
