"""alternation, induction and khop against plain loops from their rules."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.alternation import Alternation
from pe_lab.tasks.induction import Induction
from pe_lab.tasks.khop import KHop


def alternation(**keys):
    plain = {"min_letters": 8, "max_letters": 12, "block": 3, "min_blocks": 2, "max_blocks": 5}
    return Alternation(splits={}, **(plain | keys))


def blocks_of(letters):
    """The number of each letter's block."""
    found, before = [], "b"
    for letter in letters:
        found.append((found[-1] if found else 0) + (letter != before))
        before = letter
    return found


@given(
    low=st.integers(5, 20),
    more=st.integers(0, 10),
    fewest=st.integers(1, 5),
    block=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_alternation(low, more, fewest, block, seed):
    task = alternation(
        min_letters=low, max_letters=low + more, block=block, min_blocks=fewest, max_blocks=5
    )
    batch = task.sample(generator(seed), 4)
    lengths = batch.real().sum(axis=1)
    for row, length in enumerate(lengths):
        words = [task.vocab[i] for i in batch.tokens[row]]
        assert words[0] == "<bos>"
        assert set(words[length:]) <= {"<pad>"}
        letters = words[1:length]
        assert low <= len(letters) <= low + more
        blocks = blocks_of(letters)
        assert letters[0] == "a"
        assert fewest <= blocks[-1] <= 5
        answers = [task.vocab[i] for i in batch.targets[row, 1:length]]
        assert answers == ["01"[found == block] for found in blocks]
        assert batch.scored[row].tolist() == [0 < at < length for at in range(len(words))]
        assert batch.tags["block"][row, 1:length].tolist() == blocks


def neighbour(words, side, occurrence):
    """The place of the answer to a text, | and a letter."""
    letters, asked = words[: words.index("|")], words[words.index("|") + 1]
    places = [place for place, letter in enumerate(letters) if letter == asked]
    assert (len(places) == 1) == (occurrence == "unique")
    found = places[-1 if occurrence == "last" else 0] + (1 if side == "right" else -1)
    assert 0 <= found < len(letters)
    return found


def induction(**keys):
    plain = {"min_letters": 3, "max_letters": 8, "n_symbols": 5}
    return Induction(splits={}, **({"side": "right", "occurrence": "unique"} | plain | keys))


@given(
    low=st.integers(3, 20),
    more=st.integers(0, 10),
    n_symbols=st.integers(2, 30),
    side=st.sampled_from(["right", "left"]),
    occurrence=st.sampled_from(["unique", "first", "last"]),
    seed=st.integers(0, 2**32),
)
def test_induction(sentences, low, more, n_symbols, side, occurrence, seed):
    task = induction(
        min_letters=low, max_letters=low + more, n_symbols=n_symbols, side=side,
        occurrence=occurrence,
    )  # fmt: skip
    batch = task.sample(generator(seed), 4)
    for row, (words, scored, answers) in enumerate(sentences(task, batch)):
        found = neighbour(words, side, occurrence)
        assert low <= words.index("|") <= low + more
        assert scored == [len(words) - 2]
        assert answers == [words[-1]] == [words[found]]
        assert batch.tags["distance"][row, scored[0]] == scored[0] - found


def chain(words, place, hops):
    """Where ``hops`` pointers lead from a place, in letters alone; None: nowhere."""
    for _ in range(hops):
        earlier = [at for at in range(place) if words[at] == words[place]]
        if not earlier:
            return None
        place = earlier[-1] + 1
    return place


def khop(**keys):
    return KHop(splits={}, **({"length": 12, "n_symbols": 4, "min_hops": 1, "max_hops": 2} | keys))


@given(
    n_symbols=st.integers(3, 6),
    low=st.integers(0, 4),
    more=st.integers(0, 3),
    spare=st.integers(0, 20),
    seed=st.integers(0, 2**32),
)
def test_khop(n_symbols, low, more, spare, seed):
    high = max(1, low + more)
    task = khop(
        length=high * (1 + n_symbols) + 1 + spare, n_symbols=n_symbols, min_hops=low, max_hops=high
    )
    batch = task.sample(generator(seed), 4)
    assert batch.tokens.shape == (4, task.length)
    for row in range(4):
        words = [task.vocab[i] for i in [*batch.tokens[row], batch.targets[row, -1]]]
        hops = words.count(">")
        letters = words[hops : task.length]
        assert low <= hops <= high
        assert ">" not in letters
        assert all(one != other for one, other in pairwise(letters))
        assert batch.scored[row].any()
        for place in range(task.length):
            end = chain(letters, place - hops, hops) if place >= hops else None
            answer = task.vocab[batch.targets[row, place]]
            assert batch.scored[row, place] == (end is not None)
            if end is None:
                assert place == task.length - 1 or answer == words[place + 1]
                continue
            assert answer == letters[end]
            assert batch.tags["hops"][row, place] == hops
            assert batch.tags["distance"][row, place] == place - hops - end
