"""counting and navigation against replays, step by step."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.counting import Counting
from pe_lab.tasks.navigation import Navigation


def counting(**keys):
    small = {
        "n_vars": 1,
        "min_ops": 6,
        "max_ops": 6,
        "set_weight": 1,
        "increment_weight": 7,
        "pass_weight": 10,
        "max_tokens": None,
    }
    return Counting(splits={}, **(small | keys))


def run(words):
    """The operations, what is printed, and the value it has."""
    values, operations, place = {}, [], 0
    while words[place] != "print":
        if words[place] == "pass;":
            operations.append("pass")
            place += 1
            continue
        name = words[place]
        assert name in "abcde"
        if words[place + 1] == "++;":
            assert name in values, "incremented before it was set"
            values[name] += 1
            assert values[name] <= 10
            operations.append("increment")
            place += 2
        else:
            assert words[place + 1 : place + 4] == ["=", "0", ";"]
            values[name] = 0
            operations.append("set")
            place += 4
    assert len(words) == place + 3
    return operations, words[place + 1], values[words[place + 1]]


@given(
    n_vars=st.integers(1, 5),
    min_ops=st.integers(1, 12),
    more=st.integers(0, 30),
    weights=st.tuples(st.integers(1, 9), st.integers(0, 50), st.integers(0, 60)),
    seed=st.integers(0, 2**32),
)
def test_rule(sentences, n_vars, min_ops, more, weights, seed):
    task = counting(
        n_vars=n_vars,
        min_ops=min_ops,
        max_ops=min_ops + more,
        **dict(zip(("set_weight", "increment_weight", "pass_weight"), weights, strict=True)),
    )
    for words, scored, answers in sentences(task, task.sample(generator(seed), 8)):
        operations, printed, value = run(words)
        assert min_ops <= len(operations) <= min_ops + more
        assert printed in "abcde"[:n_vars]
        assert answers == [str(value)]
        assert scored == [len(words) - 2]


def published(rng, task):
    """A program as the published generator draws it, by trying: operations, print and value."""
    weights = task.set_weight, task.increment_weight, task.pass_weight
    while True:
        values, operations = {}, []
        n_ops = rng.randint(task.min_ops, task.max_ops)
        while len(operations) < n_ops:
            (kind,) = rng.choices(("set", "increment", "pass"), weights)
            if kind == "set":
                values[rng.choice("abcde"[: task.n_vars])] = 0
            if kind == "increment":
                if not values:
                    continue
                name = rng.choice(sorted(values))
                if values[name] == 10:
                    continue
                values[name] += 1
            operations.append(kind)
        if values:
            printed = rng.choice(sorted(values))
            return operations, printed, values[printed]


@pytest.mark.parametrize(
    "keys",
    [
        {"min_ops": 3, "max_ops": 20, "pass_weight": 50},
        {"min_ops": 14, "max_ops": 24, "pass_weight": 1, "n_vars": 2},
        {"min_ops": 1, "max_ops": 3, "pass_weight": 5, "n_vars": 3, "increment_weight": 2},
        {"min_ops": 40, "max_ops": 40, "pass_weight": 1, "increment_weight": 9, "n_vars": 2},
    ],
)
def test_distribution_is_the_published_generators(sentences, keys):
    """Two samples, one by trying, agree in length, value, variable and kinds by place."""
    task, n, tries = counting(**keys), 4000, random.Random(0)
    ours = [run(words) for words, _, _ in sentences(task, task.sample(generator(2), n))]
    theirs = [published(tries, task) for _ in range(n)]
    for feature in (
        lambda p: len(p[0]),
        lambda p: p[1],
        lambda p: p[2],
        lambda p: p[0].count("set"),
        lambda p: p[0].count("increment"),
        lambda p: p[0][-1],
        lambda p: (p[0].index("set"), len(p[0])),
    ):
        a, b = Counter(map(feature, ours)), Counter(map(feature, theirs))
        count_visible_keys = [k for k in a | b if a[k] + b[k] >= 10]
        chi2 = sum((a[k] - b[k]) ** 2 / (a[k] + b[k]) for k in count_visible_keys)
        # The mean and variance of chi-square with as many degrees of freedom.
        assert chi2 < len(count_visible_keys) + 4.5 * (2 * len(count_visible_keys)) ** 0.5


def test_long_programs_lose_their_left_end(sentences):
    keys = {"min_ops": 4, "max_ops": 30, "n_vars": 2}
    whole, cut = counting(**keys), counting(**keys, max_tokens=24)
    assert whole.n_tokens == 4 * 30 + 3 - 1
    assert cut.n_tokens == 23
    pairs = zip(
        sentences(whole, whole.sample(generator(4), 200)),
        sentences(cut, cut.sample(generator(4), 200)),
        strict=True,
    )
    n_cut = 0
    for (words, _, answers), (cut_words, cut_scored, cut_answers) in pairs:
        assert cut_words == words[-24:]
        assert cut_answers == answers
        assert cut_scored == [len(cut_words) - 2]
        n_cut += len(words) > 24
    assert 20 < n_cut < 180
    assert cut.find_wrong_answer(cut.sample(generator(4), 200)) is None


@pytest.mark.parametrize(
    ("keys", "length", "expected"),
    [
        ({}, 127, (24, 48, 128)),
        ({}, 255, (48, 96, 256)),
        ({}, 256, (48, 96, 257)),
        ({}, 6, (1, 2, 7)),
        ({"max_tokens": None}, 194, (24, 48, None)),
        ({"max_tokens": None}, 193, (23, 47, None)),
        ({"max_tokens": None}, 6, (1, 1, None)),
        ({"max_tokens": 500}, 388, (48, 96, None)),
    ],
)
def test_at_length(load, keys, length, expected):
    task = load("counting", **keys).split("shorter").at_length(length)
    assert (task.min_ops, task.max_ops, task.max_tokens) == expected
    assert task.n_tokens == min(length, 4 * task.max_ops + 2)
    assert task.n_tokens > length - 4


def navigation(**keys):
    plain = {
        "dims": 1,
        "size": 4,
        "n_steps": 8,
        "max_run": 3,
        "n_objects": 3,
        "p_empty": 0.5,
        "score_empty": False,
    }
    return Navigation(splits={}, **(plain | keys))


def check_walk(task, words, scored):
    """The whole sequence, last observation included, against the rule; distances by place."""
    here, held, distances = [0] * task.dims, {}, {}
    for query in range(0, len(words), 2):
        sign, axis = words[query]
        here["xyz".index(axis)] += {"+": 1, "-": -1}[sign]
        place = tuple(x % task.size for x in here)
        seen = words[query + 1]
        value, since = held.get(place, (seen, None))
        assert seen == value
        asked = since is not None and (seen != "_" or task.score_empty)
        assert scored[query] == asked
        if asked:
            distances[query] = query - since
        assert query + 1 == len(scored) or not scored[query + 1]
        held[place] = seen, query + 1
    return distances


@given(
    dims=st.integers(1, 3),
    size=st.integers(2, 6),
    n_steps=st.integers(2, 40),
    max_run=st.integers(1, 50),
    n_objects=st.integers(1, 23),
    p_empty=st.sampled_from([0.0, 0.3, 1.0]),
    score_empty=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_navigation(sentences, dims, size, n_steps, max_run, n_objects, p_empty, score_empty, seed):
    task = navigation(
        dims=dims, size=size, n_steps=n_steps, max_run=max_run, n_objects=n_objects,
        p_empty=p_empty, score_empty=score_empty or p_empty == 1,
    )  # fmt: skip
    batch = task.sample(generator(seed), 6)
    assert len(set(task.vocab)) == len(task.vocab) == 2 * dims + n_objects + 1
    for row, (words, places, _) in enumerate(sentences(task, batch)):
        assert len(words) == 2 * n_steps
        distances = check_walk(task, words, np.isin(np.arange(2 * n_steps - 1), places))
        observed = set(words[1::2])
        assert observed <= set(task.vocab[2 * dims :])
        assert p_empty or "_" not in observed
        assert p_empty < 1 or observed == {"_"}
        for place, distance in enumerate(batch.tags["distance"][row]):
            assert distance == distances.get(place, 0)
