"""addition against Python's integers, group_word against permutations multiplied one by one."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.addition import Addition
from pe_lab.tasks.group_word import GroupWord


def check(task, words, scored):
    """The rule, with Python's integers; the place of each word, 0 for signs."""
    kept = [word for word in words if word[0] != "h"]
    before = [start for start, word in zip(["", *words], words, strict=False) if word[0] != "h"]
    hints = [int(word[1:]) if word.startswith("h") else None for word in before]
    plus, equals = kept.index("+"), kept.index("=")
    texts = ["".join(part) for part in (kept[:plus], kept[plus + 1 : equals], kept[equals + 1 :])]
    if task.reverse:
        texts[2] = texts[2][::-1]
    a, b, total = (int(text, task.base) for text in texts)
    assert a + b == total
    sizes = [len(text.lstrip("0")) or 1 for text in texts]
    longest = max(sizes[:2])
    assert task.min_digits <= min(sizes[:2]) <= longest <= task.max_digits
    shown = [longest, longest, longest + 1] if task.pad else sizes
    assert [len(text) for text in texts] == shown
    places = [
        *range(shown[0], 0, -1),
        0,
        *range(shown[1], 0, -1),
        0,
        *(range(1, shown[2] + 1) if task.reverse else range(shown[2], 0, -1)),
    ]
    if task.hints is not None:
        firsts = {hint - at for hint, at in zip(hints, places, strict=True) if at}
        assert len(firsts) == 1
        assert max(hint for hint in hints if hint is not None) < task.hints
        places = [at for at in places for _ in range(2 if at else 1)]
    assert scored == list(range(words.index("="), len(words) - 1))
    return places, longest


@given(
    fewest=st.integers(1, 8),
    more=st.integers(0, 12),
    base=st.integers(2, 10),
    reverse=st.booleans(),
    pad=st.booleans(),
    spare=st.none() | st.integers(1, 5),
    units_id=st.sampled_from(["largest", "smallest"]),
    seed=st.integers(0, 2**32),
)
def test_rule(sentences, fewest, more, base, reverse, pad, spare, units_id, seed):
    task = Addition(
        splits={},
        min_digits=fewest,
        max_digits=fewest + more,
        base=base,
        reverse=reverse,
        pad=pad,
        hints=None if spare is None else fewest + more + spare,
        units_id=units_id,
    )
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape == (8, task.n_tokens)
    assert batch.positions.keys() == task.position_axes.keys() == {"place"}
    assert batch.positions["place"].max() < task.position_axes["place"]
    for row, (words, scored, _) in enumerate(sentences(task, batch)):
        places, longest = check(task, words, scored)
        ids, tags = batch.positions["place"][row], batch.tags["place"][row]
        read = len(words) - 1
        # As in the published code: the digits of one place share an id.
        if units_id == "largest":
            expected = [longest + 2 - at for at in places[:read]]
        else:
            expected = [at + 1 for at in places[:read]]
            if not reverse:
                expected[words.index("=")] = max(places[words.index("=") :]) + 2
        assert ids[:read].tolist() == expected
        assert not ids[read:].any()
        assert tags[scored].tolist() == [places[at + 1] for at in scored]


def group_word(**keys):
    plain = {"group": "S3", "generators": "all", "min_steps": 5, "max_steps": 5}
    return GroupWord(
        splits={}, **(plain | {"tokens_per_step": 1, "score": "every", "start": False} | keys)
    )


def product(group, first, second):
    """Of two words of the vocabulary: first the first."""
    if group.startswith("Z_"):
        return str((int(first) + int(second)) % int(group[2:]))
    return "".join(second[int(point) - 1] for point in first)


def moved(group, word):
    """How many points it moves."""
    if group.startswith("Z_"):
        return 0 if word == "0" else int(group[2:])
    return sum(int(point) != place for place, point in enumerate(word, start=1))


def is_even(word):
    crossings = [(a, b) for i, a in enumerate(word) for b in word[i:] if a > b]
    return len(crossings) % 2 == 0


def check_word(task, tokens, targets, scored, length):
    """One row, as words, against the rule."""
    if task.start:
        assert (tokens[0], targets[0], scored[0]) == ("<s>", task.vocab[0], False)
        tokens, targets, scored, length = tokens[1:], targets[1:], scored[1:], length - 1
    k = task.tokens_per_step
    assert length % k == 0
    assert task.min_steps <= length // k <= task.max_steps
    state = task.vocab[0]
    for place in range(len(tokens)):
        if place >= length:
            assert tokens[place] == targets[place] == "<pad>"
            assert not scored[place]
            continue
        if place % k == 0:
            assert tokens[place] in allowed(task)
            after = product(task.group, state, tokens[place])
        else:
            assert tokens[place] == "_"
        if place % k == k - 1:
            state = after
            assert scored[place] == (task.score == "every" or place == length - 1)
        else:
            assert not scored[place]
        assert targets[place] == state


def allowed(task):
    elements = task.vocab[:-3]
    if task.generators == "neighbours":
        return {"0", "1", elements[-1]}
    most = {"all": 1000, "swaps": 2, "cycles3": 3}[task.generators]
    return {word for word in elements if moved(task.group, word) <= most}


KINDS = [
    *((group, "all") for group in ("Z_2", "Z_7", "Z_60", "S2", "S3", "S4", "S5", "A3", "A4", "A5")),
    *((group, "swaps") for group in ("Z_2", "S2", "S3", "S4", "S5")),
    *((group, "cycles3") for group in ("Z_3", "S3", "S4", "S5", "A3", "A4", "A5")),
    *((group, "neighbours") for group in ("Z_2", "Z_3", "Z_5", "Z_12")),
]


@given(
    kind=st.sampled_from(KINDS),
    steps=st.tuples(st.integers(1, 20), st.integers(1, 20)).map(sorted),
    k=st.integers(1, 4),
    score=st.sampled_from(["every", "last"]),
    start=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_group_word(kind, steps, k, score, start, seed):
    task = group_word(
        group=kind[0], generators=kind[1], min_steps=steps[0], max_steps=steps[1],
        tokens_per_step=k, score=score, start=start,
    )  # fmt: skip
    batch = task.sample(generator(seed), 4)
    assert batch.tokens.shape == batch.targets.shape == batch.scored.shape == (4, task.n_tokens)
    assert (batch.lengths is None) == (steps[0] == steps[1])
    for row, length in enumerate(batch.real().sum(axis=1)):
        words = [[task.vocab[i] for i in part[row]] for part in (batch.tokens, batch.targets)]
        check_word(task, *words, batch.scored[row], length)


@pytest.mark.parametrize(
    ("group", "size"),
    [("Z_7", 7), ("S2", 2), ("S3", 6), ("S4", 24), ("S5", 120), ("A3", 3), ("A4", 12), ("A5", 60)],
)
def test_elements(group, size):
    elements = group_word(group=group).vocab[:-3]
    assert len(set(elements)) == len(elements) == size
    if group[0] in "SA":
        n = int(group[1])
        every = {"".join(p) for p in permutations("12345"[:n])}
        assert set(elements) == {p for p in every if group[0] == "S" or is_even(p)}
        assert elements[0] == "12345"[:n]
    assert {product(group, a, b) for a in elements for b in elements} == set(elements)


def test_lengths_are_of_whole_steps():
    task = group_word(min_steps=3, max_steps=6, tokens_per_step=4).at_length(51)
    assert (task.n_tokens, task.min_steps, task.max_steps) == (48, 6, 12)
    assert group_word(tokens_per_step=4, start=True).at_length(48).n_tokens == 45
