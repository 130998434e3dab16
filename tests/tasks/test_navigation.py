"""navigation against a walk with a map, step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.navigation import Navigation


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


def check(task, words, scored):
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


def runs(actions):
    """Lengths of the runs of equal actions."""
    ends = [i for i in range(1, len(actions)) if actions[i] != actions[i - 1]]
    return np.diff([0, *ends, len(actions)])


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
def test_rule(sentences, dims, size, n_steps, max_run, n_objects, p_empty, score_empty, seed):
    task = navigation(
        dims=dims, size=size, n_steps=n_steps, max_run=max_run, n_objects=n_objects,
        p_empty=p_empty, score_empty=score_empty or p_empty == 1,
    )  # fmt: skip
    batch = task.sample(generator(seed), 6)
    assert len(set(task.vocab)) == len(task.vocab) == 2 * dims + n_objects + 1
    for row, (words, places, _) in enumerate(sentences(task, batch)):
        assert len(words) == 2 * n_steps
        distances = check(task, words, np.isin(np.arange(2 * n_steps - 1), places))
        observed = set(words[1::2])
        assert observed <= set(task.vocab[2 * dims :])
        assert p_empty or "_" not in observed
        assert p_empty < 1 or observed == {"_"}
        for place, distance in enumerate(batch.tags["distance"][row]):
            assert distance == distances.get(place, 0)


def test_runs_and_objects_are_uniform(assert_share):
    task = navigation(dims=2, size=50, n_steps=12, max_run=4, n_objects=5, p_empty=0.3)
    batch = task.sample(generator(1), 20_000)
    sequences = np.concatenate([batch.tokens, batch.targets[:, -1:]], axis=1)
    actions, observed = sequences[:, ::2], sequences[:, 1::2]
    for action in range(4):
        assert_share((actions[:, 0] == action).sum(), 20_000, 1 / 4)
    # The first change of direction: after a run of k < 4, where the next run has another one.
    changed = actions != actions[:, :1]
    first = np.where(changed.any(axis=1), changed.argmax(axis=1), 99)
    assert_share((first == 1).sum(), 20_000, 1 / 4 * 3 / 4)
    assert_share((first == 2).sum(), 20_000, (1 / 4 + 1 / 16 * 1 / 4) * 3 / 4)
    counts = np.bincount(observed[:, 0] - 4, minlength=6)
    assert_share(counts[5], 20_000, 0.3)
    for count in counts[:5]:
        assert_share(count, 20_000, 0.7 / 5)


@pytest.mark.parametrize("max_run", [1, 2, 10])
def test_no_run_is_cut_but_the_last(max_run):
    """In one direction alone runs join; in many they are seldom the same."""
    task = navigation(dims=3, size=9, n_steps=60, max_run=max_run)
    actions = task.sample(generator(2), 500).tokens[:, ::2]
    lengths = np.concatenate([runs(row)[:-1] for row in actions])
    assert lengths.min() == 1
    # Two runs of six directions join in a sixth of the cases.
    assert (lengths > max_run).mean() < 1 / 6 + 0.02
    assert lengths.max() >= max_run


def test_drawing(drawn):
    words, queries, _ = drawn(navigation())
    assert list(check(navigation(), words, np.isin(np.arange(15), queries))) == queries


def test_something_is_scored():
    with pytest.raises(ValueError, match=r"task\.p_empty is 1\.0, so that .* nothing is scored"):
        navigation(p_empty=1.0)
    navigation(p_empty=1.0, score_empty=True)


def test_a_split_has_the_vocabulary_of_its_task(load):
    with pytest.raises(ValueError, match="split other cannot change dims: the vocabulary is"):
        load("navigation", splits={"other": {"dims": 2}})
