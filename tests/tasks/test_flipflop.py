"""flipflop against a replay of the memory, and its text files."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.rng import generator
from pe_lab.tasks.flipflop import FlipFlop
from pe_lab.train.batches import TrainData, evaluation_set


def check(words, scored, answers):
    """The rule, one token after another."""
    assert len(words) % 2 == 0
    assert (words[0], words[-2]) == ("w", "r")
    memory, reads = None, []
    for place in range(0, len(words), 2):
        instruction, bit = words[place : place + 2]
        assert instruction in ("w", "r", "i")
        assert bit in ("0", "1")
        if instruction == "w":
            memory = bit
        if instruction == "r":
            assert bit == memory
            reads.append(place)
    assert scored == reads
    assert answers == [words[place + 1] for place in reads]


@given(pairs=st.integers(2, 40), p_ignore=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_rule(sentences, pairs, p_ignore, seed):
    task = FlipFlop(splits={}, length=2 * pairs, p_ignore=p_ignore)
    batch = task.sample(generator(seed), 8)
    assert batch.tokens.shape == (8, task.n_tokens) == (8, 2 * pairs - 1)
    for sequence in sentences(task, batch):
        check(*sequence)


GOOD = ["w1i0i1r1", "w0w1r1r1", "w1r1i0r1"]


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file of three sequences, which is checked in pieces."""
    monkeypatch.setattr("pe_lab.tasks.flipflop_text.CHECKED_AT_ONCE", 9)
    path = tmp_path / "sequences.txt"
    path.write_text("\n".join(GOOD))
    return path


def from_file(path, split="sparse", **keys):
    keys = {"splits": {"sparse": {"p_ignore": 0.98}}, "length": 64, "p_ignore": 0.8} | keys
    return FlipFlop(files={split: str(path)}, **keys)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("closed", [True, False])
def test_file(path, sentences, end, closed):
    path.write_bytes((end.join(GOOD) + end * closed).encode())
    task = from_file(path)
    stored = task.stored("sparse")
    assert len(stored) == 3
    rows = list(sentences(task, stored.take(np.array([2, 0]))))
    assert ["".join(words) for words, _, _ in rows] == [GOOD[2], GOOD[0]]
    for row in rows:
        check(*row)
    assert task.split("sparse").n_tokens == 7
    assert task.split("in_domain").n_tokens == task.n_tokens == 63
    assert task.stored("in_domain") is None


@pytest.mark.parametrize("split", ["train", "in_domain"])
def test_training_and_in_domain_are_equally_long(path, split):
    with pytest.raises(ValueError, match="length=64"):
        from_file(path, split=split)
    task = from_file(path, split=split, length=8)
    assert {task.split(name).n_tokens for name in ("train", "in_domain", "sparse")} == {7}
    assert TrainData(task, 0, 2).batch(0).tokens.shape == (2, 7)
    assert evaluation_set(task, "in_domain", 2).tokens.shape == (2, 7)
    longer = task.at_length(31)
    assert longer.sample(generator(7), 4).tokens.shape == (4, 31)
    assert longer.stored(split) is None


def test_the_digest_is_of_what_was_read(path):
    told = f"26 bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
    task = from_file(path)
    path.unlink()
    assert task.contents() == {"sparse": told}
    path.write_text("\n".join(GOOD[::-1]))
    assert from_file(path).contents() != task.contents()


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", "is empty"),
        (b"w1i0r1\nw1i0r1\nw1iXr1\nw1i0r1\n", "line 3, column 4"),
        (b"w1i0r1\nw1i0r1\nw1i0r\xc3\xa9", "line 3 has 7"),
        (b"w1i0r1\nw1r1\nw1i0r1\n", "line 2 has 4"),
        (b"w1i0r1\nw1i0i0r1\nw1i0r1\n", "line 2 has 8"),
        (b"w1i0r1\nw1i0r1\nw1r1", "line 3 has 4"),
        (b"w1i0r\n", "line 1 has 5"),
        (b"w1i0r1\nr1i0r1\n", "line 2, column 1"),
        (b"w1i0r1\nw1i0i1\n", "line 2, column 5"),
        (b"w1i0r1\nw10ir1\n", "line 2, column 3"),
        (b"w1i0r1\nw1i0r0\n", "line 2, column 6 .* last written"),
        (b"w1r1w0i1r0\nw0r0w1i0r0\nw1r0w1i0r1", "line 2, column 10"),
        (b"w1r1w0i1r0\nw0r0w1i0r1\nw1r0w1i0r1", "line 3, column 4"),
        (b"w1i0r1\r\nw1i0r1\nw1i0r1\r\n", "line 2 and line 1 end differently"),
    ],
)
def test_bad_file(path, content, where):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path}.*{where}"):
        from_file(path)
