"""modular, even_pairs and missing_duplicate against their rules, word by word."""

from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.even_pairs import EvenPairs
from pe_lab.tasks.missing_duplicate import MissingDuplicate
from pe_lab.tasks.modular import Modular


def modular(**keys):
    plain = {"m": 5, "operators": "+-*", "brackets": False, "min_length": 3, "max_length": 9}
    return Modular(splits={}, **(plain | keys))


def value(words, m):
    """By Python's own arithmetic: its operators bind as those of the task."""
    return eval("".join(words)) % m


def questions(sentences, task, batch):
    """(text, answer) of each row, which has nothing else scored."""
    for words, scored, answers in sentences(task, batch):
        assert words[-2] == "="
        assert scored == [len(words) - 2]
        assert answers == [words[-1]]
        assert "=" not in words[:-2]
        assert "<pad>" not in words
        yield words[:-2], words[-1]


limits = st.tuples(st.integers(1, 40), st.integers(1, 40)).map(sorted)


@given(
    m=st.integers(2, 12),
    operators=st.sampled_from(["+-*", "+-", "+", "*", "*-"]),
    brackets=st.booleans(),
    limits=limits,
    seed=st.integers(0, 2**32),
)
def test_modular(sentences, m, operators, brackets, limits, seed):
    low, high = limits
    task = modular(m=m, operators=operators, brackets=brackets, min_length=low, max_length=high)
    if not brackets:
        low, high = low - (low % 2 == 0), high - (high % 2 == 0)
    for text, answer in questions(sentences, task, task.sample(generator(seed), 6)):
        assert low <= len(text) <= high
        assert answer == str(value(text, m))
        if brackets:
            check_nested(text, operators)
        else:
            assert len(text) % 2 == 1
            assert set(text[1::2]) <= set(operators)
            assert all(word.isdigit() for word in text[::2])


def check_nested(text, operators):
    """The whole text in brackets from 3 tokens on, with one operator outside the inner ones."""
    if len(text) <= 2:
        assert text[:-1] in ([], ["-"])
        assert text[-1].isdigit()
        return
    assert text[0] == "("
    assert text[-1] == ")"
    if len(text) <= 4:
        check_nested(text[1:-1], operators)
        return
    inner, depth, splits = text[1:-1], 0, []
    for place, word in enumerate(inner):
        depth += {"(": 1, ")": -1}.get(word, 0)
        # After an operand, so that it is not the sign of one.
        if depth == 0 and word in "+-*" and place and inner[place - 1] not in "+-*":
            splits.append(place)
    (place,) = splits
    assert inner[place] in operators
    check_nested(inner[:place], operators)
    check_nested(inner[place + 1 :], operators)


@given(limits=limits, seed=st.integers(0, 2**32))
def test_even_pairs(sentences, limits, seed):
    task = EvenPairs(splits={}, min_length=limits[0], max_length=limits[1])
    for text, answer in questions(sentences, task, task.sample(generator(seed), 6)):
        assert limits[0] <= len(text) <= limits[1]
        assert set(text) <= {"a", "b"}
        pairs = sum(text[i] != text[i + 1] for i in range(len(text) - 1))
        assert answer == ("even" if pairs % 2 == 0 else "odd")


@given(limits=limits, seed=st.integers(0, 2**32))
def test_missing_duplicate(sentences, limits, seed):
    low, high = (max(2, limit) for limit in limits)
    task = MissingDuplicate(splits={}, min_length=low, max_length=high)
    for text, answer in questions(sentences, task, task.sample(generator(seed), 6)):
        assert low - low % 2 <= len(text) <= high
        assert text.count("_") == 1
        half = len(text) // 2
        assert 2 * half == len(text)
        whole = [answer if word == "_" else word for word in text]
        assert whole[:half] == whole[half:]
        assert set(whole) <= {"a", "b"}
