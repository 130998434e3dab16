"""copy and reverse against Python's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.copy import Copy
from pe_lab.tasks.reverse import Reverse

RULES = {Copy: lambda letters: letters, Reverse: lambda letters: letters[::-1]}
both = pytest.mark.parametrize("cls", RULES)


def check(cls, words, scored, answers):
    n = words.index("|")
    assert len(words) == 2 * n + 1
    assert words[n + 1 :] == answers == RULES[cls](words[:n])
    assert scored == list(range(n, 2 * n))
    return n


@both
@given(
    fewest=st.integers(1, 20),
    more=st.integers(0, 10),
    n_symbols=st.integers(1, 26),
    seed=st.integers(0, 2**32),
)
def test_rule(sentences, cls, fewest, more, n_symbols, seed):
    task = cls(splits={}, min_letters=fewest, max_letters=fewest + more, n_symbols=n_symbols)
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape == (8, task.n_tokens)
    assert (batch.lengths is None) == (more == 0)
    for words, scored, answers in sentences(task, batch):
        assert fewest <= check(cls, words, scored, answers) <= fewest + more
        assert set(answers) <= set(task.vocab[:n_symbols])


@both
def test_lengths_and_letters_are_uniform(assert_share, cls):
    task = cls(splits={}, min_letters=3, max_letters=6, n_symbols=5)
    batch = task.sample(generator(1), 20_000)
    for n in range(3, 7):
        assert_share((batch.lengths == 2 * n).sum(), 20_000, 1 / 4)
    for place in range(3):
        for count in np.bincount(batch.tokens[:, place]):
            assert_share(count, 20_000, 1 / 5)


@both
def test_drawing(drawn, cls):
    check(cls, *drawn(cls(splits={}, min_letters=5, max_letters=5, n_symbols=16)))


def test_fewest_and_most_must_fit():
    with pytest.raises(ValueError, match=r"task.min_letters is 9, more than task.max_letters, 8"):
        Copy(splits={}, min_letters=9, max_letters=8, n_symbols=16)
