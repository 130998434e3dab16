"""needle against a plain loop from the rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.needle import Needle


def read(words):
    """The value of each name, where it was assigned, and the questions with their answers."""
    end = words.index("?")
    values, places = {}, {}
    for place in range(end):
        if words[place].startswith("x"):
            name, value = words[place], words[place + 1]
            assert value.isdigit()
            assert name not in values
            values[name], places[name] = value, place + 1
        elif not words[place].startswith("f"):
            assert words[place - 1].startswith("x")
    questions = [tuple(words[i : i + 3]) for i in range(end, len(words), 3)]
    assert all(mark == "?" for mark, _, _ in questions)
    return end, values, places, [(name, value) for _, name, value in questions]


@given(
    n=st.integers(1, 6),
    more=st.integers(0, 40),
    n_filler=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_rule(sentences, n, more, n_filler, seed):
    task = Needle(
        splits={},
        length=5 * n - 1 + more,
        n_variables=n,
        n_names=8,
        n_values=9,
        n_filler=n_filler,
    )
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape == (8, task.length)
    for row, (words, scored, answers) in enumerate(sentences(task, batch)):
        end, values, places, questions = read(words)
        assert len(values) == n
        assert sorted(name for name, _ in questions) == sorted(values)
        assert answers == [values[name] for name, _ in questions]
        assert scored == [end + 3 * i + 1 for i in range(n)]
        for (name, _), at in zip(questions, scored, strict=True):
            assert batch.tags["distance"][row, at] == at - places[name]
            assert batch.tags["depth"][row, at] == 10 * (places[name] - 1) // end


def test_places_and_questions_are_uniform(assert_share):
    task = Needle(splits={}, length=12, n_variables=2, n_names=2, n_values=3, n_filler=2)
    tokens = task.sample(generator(1), 20_000).tokens
    # 5 units, of which 2 are assignments: 10 arrangements.
    named = np.isin(tokens[:, :7], [task.vocab.index(name) for name in ("x0", "x1")])
    places = np.unique([tuple(np.flatnonzero(row)) for row in named], axis=0, return_counts=True)
    assert len(places[0]) == 10
    for count in places[1]:
        assert_share(count, 20_000, 1 / 10)
    first = tokens[np.arange(20_000), named.argmax(axis=1)]
    assert_share((tokens[:, 8] == first).sum(), 20_000, 1 / 2)
    assert_share((first == task.vocab.index("x0")).sum(), 20_000, 1 / 2)


def test_drawing(drawn):
    task = Needle(splits={}, length=18, n_variables=2, n_names=4, n_values=6, n_filler=8)
    words, scored, answers = drawn(task)
    end, values, _, questions = read(words)
    assert [values[name] for name, _ in questions] == answers
    assert scored == [end + 1, end + 4]


def test_sizes_that_do_not_fit(load):
    with pytest.raises(ValueError, match=r"task.n_variables is 9, more than task.n_names, 8"):
        load("needle", n_variables=9)
    with pytest.raises(ValueError, match=r"task.length=18 is too short .*=4, which take 19 tokens"):
        load("needle", length=18)
