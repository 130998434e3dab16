"""recall against a dictionary of the values of each key."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.recall import Recall


def recall(**keys):
    once = keys.get("reassigned") is None
    plain = {"power": 0.01 if once else None, "filling": "random" if once else None}
    plain |= {"n_pairs": 2, "length": 16, "n_keys": 20, "n_values": 20, "reassigned": None}
    return Recall(splits={}, **(plain | keys))


def check(task, words, answers, scored):
    """``words``, one more than the model reads, against the rule; the answers' distances."""
    held, asked, distances = defaultdict(list), [], {}
    for place, word in enumerate(words[:-1]):
        assert answers[place] == words[place + 1] or scored[place]
        if word[0] == "v":
            assert place % 2 == 1
            if task.reassigned is not None or place < 2 * task.n_pairs:
                assert words[place - 1][0] == "k"
                held[words[place - 1]].append((word, place))
            continue
        back = task.reassigned or 1
        if word == "_":
            assert task.filling == "blank"
        elif len(held[word]) >= back:
            value, since = held[word][-back]
            assert scored[place]
            assert answers[place] == value
            distances[place] = place - since
            asked.append(word)
            continue
        else:
            # Filling, or a key with too few values.
            assert task.filling != "blank" or place < 2 * task.n_pairs
        assert not scored[place]
    pairs = {key: values for key, values in held.items() if values}
    assert len(pairs) == task.n_pairs
    if task.reassigned is None:
        assert sorted(asked) == sorted(pairs)
        assert len({values[0][0] for values in pairs.values()}) == task.n_pairs
        assert all(place >= 2 * task.n_pairs and place % 2 == 0 for place in distances)
    return distances


def rows(task, batch):
    """Each sequence as words with the one to predict after it, targets and scored places."""
    assert batch.lengths is None
    assert batch.tokens.shape == batch.targets.shape == batch.scored.shape
    assert batch.tokens.shape[1] == task.n_tokens == task.length
    for row in range(len(batch)):
        words, answers = (
            [task.vocab[i] for i in part[row]] for part in (batch.tokens, batch.targets)
        )
        yield [*words, answers[-1]], answers, batch.scored[row]


@given(
    n_pairs=st.integers(1, 6),
    spare=st.integers(0, 10),
    more=st.integers(1, 10),
    power=st.floats(0.01, 1),
    filling=st.sampled_from(["random", "blank"]),
    back=st.none() | st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_rule(n_pairs, spare, more, power, filling, back, seed):
    least = 4 * n_pairs if back is None else 2 * (back * n_pairs + 1)
    keys = {"power": power, "filling": filling} if back is None else {}
    task = recall(
        n_pairs=n_pairs, length=least + 2 * spare, n_keys=n_pairs + more, n_values=n_pairs + more,
        reassigned=back, **keys,
    )  # fmt: skip
    batch = task.sample(generator(seed), 6)
    for row, (words, answers, scored) in enumerate(rows(task, batch)):
        distances = check(task, words, answers, scored)
        assert scored.any()
        for place, distance in enumerate(batch.tags["distance"][row]):
            assert distance == distances.get(place, 0)


@pytest.mark.parametrize("filling", ["random", "blank"])
def test_filling_never_assigns_a_key_again(filling):
    """Over many seeds: no key of a pair comes but in its pair and at its query, and no value after
    the pairs."""
    task = recall(n_pairs=3, length=20, n_keys=5, n_values=3, filling=filling)
    for seed in range(2000):
        tokens = task.sample(generator(seed), 8).tokens
        keys, values = tokens[:, :6:2], tokens[:, 1:6:2]
        rest = tokens[:, 6:]
        assert ((values >= 5) & (values < 8)).all()
        assert not ((rest >= 5) & (rest < 8)).any()
        assert (np.sort((rest[:, :, None] == keys[:, None, :]).sum(axis=1)) == 1).all()


def test_filling_is_uniform_over_the_other_keys(assert_share):
    tokens = recall(n_pairs=1, length=8, n_keys=4, n_values=2).sample(generator(3), 10_000).tokens
    filling = tokens[:, 3::2]  # no queries there
    shift = (filling - tokens[:, :1]) % 4
    for other in (1, 2, 3):
        assert_share((shift == other).sum(), shift.size, 1 / 3)


def test_gaps_follow_the_power_law(assert_share):
    """A single key: its place has probability i^(power - 1) / sum."""
    for power in (0.01, 0.5, 1.0):
        task = recall(n_pairs=1, length=12, n_keys=3, n_values=2, power=power)
        asked = task.sample(generator(1), 20_000).scored.argmax(axis=1)
        weights = np.arange(1, 6) ** (power - 1.0)
        for place, weight in enumerate(weights / weights.sum()):
            assert_share((asked == 2 + 2 * place).sum(), 20_000, weight)


def test_keys_and_values_are_uniform(assert_share):
    for back in (None, 2):
        batch = recall(n_pairs=3, length=16, n_keys=5, n_values=4, reassigned=back).sample(
            generator(2), 10_000
        )
        for place in range(0, 6, 2):
            for count in np.bincount(batch.tokens[:, place], minlength=5)[:5]:
                assert_share(count, 10_000, 1 / 5)
            for count in np.bincount(batch.tokens[:, place + 1] - 5, minlength=4):
                assert_share(count, 10_000, 1 / 4)
    # Which of the keys is assigned again, after one pair of each.
    which = (batch.tokens[:, :6:2, None] == batch.tokens[:, None, 6::2]).argmax(axis=1)
    for count in np.bincount(which.ravel(), minlength=3):
        assert_share(count, which.size, 1 / 3)


@pytest.mark.parametrize(
    ("which", "keys"),
    [
        (0, {"n_pairs": 2, "length": 10, "filling": "blank"}),
        (1, {"n_pairs": 2, "length": 14, "reassigned": 2}),
    ],
)
def test_drawings(drawn, which, keys):
    task = recall(**keys)
    words, places, values = drawn(task, which)
    words = [*words[: task.length], words[0]]
    answers = dict(zip(places, values, strict=True))
    texts = [answers.get(place, words[place + 1]) for place in range(task.length)]
    check(task, words, texts, [place in answers for place in range(task.length)])


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"power": None}, r"task\.power is null with task\.reassigned=null: it is for reassigned="),
        ({"reassigned": 2, "power": 1.0}, r"task\.power is 1\.0 .*reassigned=2: .*=recall_reassig"),
        ({"reassigned": 2, "filling": "blank"}, r"task\.filling is blank with task\.reassigned=2"),
        ({"n_pairs": 5}, r"task\.length is 16, too short for task\.n_pairs=5: give at least 20"),
        ({"reassigned": 4}, r"task\.length is 16, too short for task\.n_pairs=2: give at least 18"),
        ({"n_keys": 2}, r"task\.n_keys is 2, too few for task\.n_pairs=2: give at least 3"),
        ({"n_values": 1}, r"task\.n_values is 1, too few for task\.n_pairs=2, whose values differ"),
    ],
)
def test_keys_must_fit(keys, complaint):
    with pytest.raises(ValueError, match=complaint):
        recall(**keys)


def test_a_split_has_the_vocabulary_of_its_task(load):
    with pytest.raises(ValueError, match="split other cannot change n_keys: the vocabulary is"):
        load("recall", splits={"other": {"n_keys": 300}})
