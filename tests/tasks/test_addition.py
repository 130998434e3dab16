"""addition against Python's integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.addition import Addition


def split_hints(words):
    """The words without hints, and the hint before each of them (None before signs)."""
    kept, hints = [], []
    for place, word in enumerate(words):
        if not word.startswith("h"):
            before = words[place - 1] if place else ""
            kept.append(word)
            hints.append(int(before[1:]) if before.startswith("h") else None)
    return kept, hints


def check(task, words, scored):
    """The rule, with Python's integers; the place of each word, 0 for signs."""
    kept, hints = split_hints(words)
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


def test_digits_and_lengths_are_uniform(assert_share):
    task = Addition(
        splits={}, min_digits=1, max_digits=3, base=10, reverse=False, pad=True, hints=None
    )
    digits, n_digits = task._numbers(generator(1), 20_000)
    assert_share([(n_digits[0] == size).sum() for size in (1, 2, 3)], 20_000, 1 / 3)
    three = digits[0][n_digits[0, :, 0] == 3]
    for digit in range(10):
        assert_share((three[:, 0] == digit).sum(), len(three), 1 / 10)
        assert_share((three[:, 2] == digit).sum(), len(three), (digit > 0) / 9)
    one = digits[0][n_digits[0, :, 0] == 1]
    assert_share((one[:, 0] == 0).sum(), len(one), 1 / 10)


@pytest.mark.parametrize("units_id", ["largest", "smallest"])
def test_the_drawing_of_ids(load, units_id):
    lines = [line.split() for line in Addition.__doc__.splitlines()]
    (shown,) = (line[1:] for line in lines if line[:1] == [units_id])
    task = load("addition", min_digits=3, max_digits=3, units_id=units_id)
    ids = task.sample(generator(0), 1).positions["place"]
    assert ids[0].tolist() == [int(number) for number in shown]


@pytest.mark.parametrize(("which", "hints"), [(0, None), (1, 5)])
def test_drawings(drawn, which, hints):
    task = Addition(
        splits={}, min_digits=2, max_digits=3, base=10, reverse=True, pad=True, hints=hints
    )
    check(task, *drawn(task, which)[:2])


@pytest.mark.parametrize("hints", [None, 30])
def test_at_length(load, hints):
    task = load("addition", hints=hints)
    for length in range(9, 60):
        made = task.at_length(length)
        assert length - 6 < made.n_tokens <= length
        assert made.sample(generator(0), 4).tokens.shape == (4, made.n_tokens)
