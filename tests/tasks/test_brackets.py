"""brackets against a stack machine, and its distribution against the rule."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.brackets import Brackets


def brackets(**keys):
    close = {"mode": "close", "k": 2, "m": 3, "length": 40, "max_gap": None, "beyond_gap": None}
    back = {"n_back": 4 if keys.get("mode") == "sentence" else None}
    return Brackets(splits={}, **(close | back | keys))


def replay(words, task):
    """Per closing bracket place, gap and depth; per sentence its words; and the greatest depth."""
    opening, closing = task.vocab[: task.k], task.vocab[task.k : 2 * task.k]
    stack, closings, sentences, deepest = [], [], [[]], 0
    for place, word in enumerate(words):
        sentences[-1].append(word)
        if word in opening:
            stack.append((place, closing[opening.index(word)]))
            deepest = max(deepest, len(stack))
        elif word in closing:
            opened, expected = stack.pop()
            assert word == expected
            closings.append((place, place - opened, len(stack) + 1))
        else:
            assert word == "."
            assert not stack
            sentences.append([])
    return closings, sentences, deepest


limits = st.none() | st.integers(1, 12)


@given(
    k=st.integers(1, 6),
    m=st.integers(1, 5),
    length=st.integers(5, 60),
    max_gap=limits,
    beyond=limits,
    seed=st.integers(0, 2**32),
)
def test_close(sentences, k, m, length, max_gap, beyond, seed):
    gaps = range(1, min(length, 2 if m == 1 else length, (max_gap or length) + 1), 2)
    beyond = None if beyond is None else min(beyond, gaps[-1] - 1)
    task = brackets(k=k, m=m, length=length, max_gap=max_gap, beyond_gap=beyond)
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape == (8, length - 1)
    assert len(task.vocab) == len(set(task.vocab)) == 2 * k + 1
    for row, (words, scored, answers) in enumerate(sentences(task, batch)):
        closings, _, deepest = replay(words, task)
        assert deepest <= m
        assert max_gap is None or all(gap <= max_gap for _, gap, _ in closings)
        # The first token of all is read, never predicted.
        wanted = {place - 1: (gap, d) for place, gap, d in closings if gap > (beyond or 0)}
        assert scored == list(wanted)
        assert answers == [words[t + 1] for t in wanted]
        for t in range(length - 1):
            tags = int(batch.tags["distance"][row, t]), int(batch.tags["depth"][row, t])
            assert tags == wanted.get(t, (0, 0))


@given(
    k=st.integers(1, 6),
    m=st.integers(1, 5),
    length=st.integers(5, 60),
    max_gap=limits,
    n_back=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_sentence(sentences, k, m, length, max_gap, n_back, seed):
    keys = {"k": k, "m": m, "length": length, "max_gap": max_gap}
    task = Brackets(splits={}, mode="sentence", beyond_gap=None, n_back=n_back, **keys)
    batch = task.sample(generator(seed), 8)
    assert len(task.vocab) == len(set(task.vocab)) == 2 * k + 1 + n_back + 1
    for row, (words, scored, answers) in enumerate(sentences(task, batch)):
        *text, query, answer = words
        _, whole, deepest = replay(text, task)
        assert deepest <= m
        assert whole.pop() == []  # the text ends with the end of a sentence
        assert ["."] not in whole
        back = int(query.removeprefix("?"))
        assert 1 <= back <= min(n_back, len(whole))
        assert [answer] == answers == [whole[-back][0]]
        assert scored == [len(text)]
        assert batch.tags["back"][row, len(text)] == back
        assert batch.tags["back"][row].sum() == back


def depths(tokens, k):
    """The depth before each token."""
    change = np.where(tokens < k, 1, np.where(tokens < 2 * k, -1, 0))
    return np.cumsum(change, axis=1) - change


def test_a_limited_gap_is_a_redrawn_pair(assert_share):
    """Outermost pairs are as those of the rule without a limit, the wide ones taken out."""

    def pairs(max_gap):
        task = brackets(k=1, m=3, length=400, max_gap=max_gap)
        tokens = task.sample(generator(2, max_gap or 0), 600).tokens
        found = []
        for row, before in zip(tokens, depths(tokens, 1), strict=True):
            outside = np.flatnonzero(before == 0)
            # Pairs that begin late could be cut: only those of the first half count.
            found += [
                tuple(row[a:b])
                for a, b in pairwise(outside)
                if row[a] == 0 and a < 200 and b - a < 180
            ]
        return found

    limited, free = pairs(9), [pair for pair in pairs(None) if len(pair) <= 10]
    assert max(map(len, limited)) == 10
    for shape in sorted(set(limited)):
        a, b = limited.count(shape), free.count(shape)
        if a + b >= 200:
            assert_share(a, a + b, len(limited) / (len(limited) + len(free)))


def test_right_is_more_than_four_fifths_of_the_closing_mass():
    task = brackets(k=2)  # ( [ ) ] .
    mass = torch.tensor(
        [
            [0.9, 0.0, 0.081, 0.019, 0.0],  # 81 % on ), though ( has more
            [0.0, 0.0, 0.79, 0.21, 0.0],  # the greatest, but not enough
            [0.0, 0.0, 0.81, 0.19, 0.0],  # the wrong one
            [0.0, 0.0, 0.1, 0.9, 0.0],
        ]
    )
    right = task.correct(mass.log(), torch.tensor([2, 2, 3, 3]))
    assert right.tolist() == [True, False, False, True]
    recall = brackets(mode="sentence")
    assert recall.correct(mass.log(), torch.tensor([0, 2, 3, 3])).tolist() == [
        True,
        True,
        False,
        True,
    ]


def test_guess_is_the_commonest_closing():
    """An answer that reads nothing is right at most where all its mass is on one bracket."""
    task = brackets(k=4, length=200)
    batch = task.sample(generator(4), 500)
    assert task.guess(batch, batch) == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    "keys",
    [
        {"max_gap": 15, "beyond_gap": 14, "length": 16},
        {"max_gap": 16, "beyond_gap": 14, "length": 84},
        {"beyond_gap": 2, "length": 5},
        {"m": 1, "beyond_gap": 0},
    ],
)
def test_the_farthest_gap_is_scored(keys):
    """As far as ``beyond_gap`` can go, and then just one gap is left."""
    batch = brackets(**{"m": 2, "length": 40} | keys).sample(generator(6), 20_000)
    assert batch.tags["distance"][batch.scored].min() == keys["beyond_gap"] + 1
