"""recall, indirect and needle against plain loops from the rule."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.indirect import Indirect
from pe_lab.tasks.needle import Needle
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
            assert task.reassigned is not None or place < 2 * task.n_pairs
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


def test_gaps_follow_the_power_law(assert_share):
    """A single key: its place has probability i^(power - 1) / sum."""
    for power in (0.01, 0.5, 1.0):
        task = recall(n_pairs=1, length=12, n_keys=3, n_values=2, power=power)
        asked = task.sample(generator(1), 20_000).scored.argmax(axis=1)
        weights = np.arange(1, 6) ** (power - 1.0)
        for place, weight in enumerate(weights / weights.sum()):
            assert_share((asked == 2 + 2 * place).sum(), 20_000, weight)


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
def test_indirect(sentences, fewest, more, low, more_shift, seed):
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


def read_needle(words):
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
def test_needle(sentences, n, more, n_filler, seed):
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
        end, values, places, questions = read_needle(words)
        assert len(values) == n
        assert sorted(name for name, _ in questions) == sorted(values)
        assert answers == [values[name] for name, _ in questions]
        assert scored == [end + 3 * i + 1 for i in range(n)]
        for (name, _), at in zip(questions, scored, strict=True):
            assert batch.tags["distance"][row, at] == at - places[name]
            assert batch.tags["depth"][row, at] == 10 * (places[name] - 1) // end
