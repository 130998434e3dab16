"""flipflop against a replay of the memory, and its text files."""

import hashlib
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe_lab.core.errors import UsageError
from pe_lab.core.rng import generator
from pe_lab.tasks.flipflop import FlipFlop
from pe_lab.train.batches import TrainData, evaluation_set
from pe_lab.train.plan import build_task


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


@pytest.mark.parametrize("p_ignore", [0, 0.1, 0.8, 0.98, 1])
def test_frequencies(assert_share, p_ignore):
    task = FlipFlop(splits={}, length=64, p_ignore=p_ignore)
    tokens = task.sample(generator(1), 2000).tokens
    instructions, bits = tokens[:, 2:-1:2], tokens[:, 1::2]
    for word, p in ("i", p_ignore), ("w", (1 - p_ignore) / 2), ("r", (1 - p_ignore) / 2):
        assert_share((instructions == task.vocab.index(word)).sum(), instructions.size, p)
    free = bits[tokens[:, :-1:2] != task.vocab.index("r")]
    assert_share((free == task.vocab.index("1")).sum(), free.size, 0.5)


def test_drawing(drawn):
    words, scored, answers = drawn(FlipFlop(splits={}, length=64, p_ignore=0.5))
    # The last instruction is a read: its answer is drawn, and ends the sequence.
    check(words, scored, answers)


def built(**keys):
    """The task as the program builds it."""
    target = {"_target_": "pe_lab.tasks.flipflop.FlipFlop"}
    return build_task(target | {"splits": {}, "length": 64, "p_ignore": 0.8} | keys)


def test_length_must_be_pairs():
    with pytest.raises(UsageError, match=r"task\.length is 63, .* even length"):
        built(length=63)
    with pytest.raises(UsageError, match=r"task\.length=2 .* at least 4"):
        built(length=2)


GOOD = ["w1i0i1r1", "w0w1r1r1", "w1r1i0r1"]


def good_file(folder):
    path = folder / "sequences.txt"
    path.write_text("\n".join(GOOD))
    return path


def from_file(path, split="sparse", **keys):
    keys = {"splits": {"sparse": {"p_ignore": 0.98}}, "length": 64, "p_ignore": 0.8} | keys
    return FlipFlop(files={split: str(path)}, **keys)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("closed", [True, False])
def test_file(tmp_path, sentences, end, closed):
    path = tmp_path / "sparse.txt"
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
def test_training_and_in_domain_are_equally_long(tmp_path, split):
    path = good_file(tmp_path)
    told = (
        rf"task\.files\.{split} holds sequences of 8 tokens, task\.length=64: set task\.length=8$"
    )
    with pytest.raises(ValueError, match=told):
        from_file(path, split=split)
    task = from_file(path, split=split, length=8)
    assert {task.split(name).n_tokens for name in ("train", "in_domain", "sparse")} == {7}
    assert TrainData(task, 0, 2).batch(0).tokens.shape == (2, 7)
    assert evaluation_set(task, "in_domain", 2).tokens.shape == (2, 7)


def test_files_of_splits_in_the_program(tmp_path):
    """Splits change keys, their lengths too, beside any files."""
    path = good_file(tmp_path)
    splits = {"sparse": {"p_ignore": 0.98}, "long": {"length": 16}}
    task = built(files={"train": str(path), "sparse": str(path)}, splits=splits, length=8)
    lengths = {name: task.split(name).n_tokens for name in ("train", *task.evaluated())}
    assert lengths == {"train": 7, "in_domain": 7, "sparse": 7, "long": 15}
    with pytest.raises(UsageError, match="split sparse cannot change files"):
        built(splits={"sparse": {"files": {}}})
    with pytest.raises(UsageError, match=r"task\.splits\.long: task\.length is 9"):
        built(splits={"long": {"length": 9}})


def test_contents(tmp_path, monkeypatch):
    assert FlipFlop(splits={}, length=8, p_ignore=0.8).contents() == {}
    path = good_file(tmp_path)
    told = f"26 bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
    task = from_file(path)
    path.unlink()  # nothing is read a second time
    assert task.contents() == {"sparse": told}
    path.write_text("\n".join(GOOD[::-1]))
    assert from_file(path).contents() != task.contents()
    monkeypatch.setattr("pe_lab.tasks.flipflop_text.CHECKED_AT_ONCE", 9)
    path.write_text("\n".join(GOOD))
    assert from_file(path).contents() == task.contents()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"w1i0r1\nw1iXr1\n", "line 2, column 4 holds 'X'; allowed are w, r, i, 0 and 1"),
        (b"w1i0r1\nw1i0r1\nw1i0r\xc3\xa9", "line 3, column 6 holds 'é'"),
        (b"w1i 0r1\n", "line 1, column 4 holds ' '"),
        (b"w1i0r1\nw1r1\nw1i0r1\n", "line 2 has 4 characters, line 1 has 6"),
        (b"w1i0r1\nw1i0i0r1\nw1i0r1\n", "line 2 has 8 characters, line 1 has 6"),
        (b"w1i0r1\nw1i0r1\nw1r1", "line 3 has 4 characters, line 1 has 6"),
        (b"w1i0r1\n\n", "line 2 has 0 characters, line 1 has 6"),
        (b"\n", "line 1 has 0 characters"),
        (b"w1i0r\n", "line 1 has 5 characters"),
        (b"w1\n", "line 1 has 2 characters"),
        (b"w1i0r1\nr1i0r1\n", "line 2, column 1 holds 'r' where w must stand"),
        (b"w1i0r1\nw1i0i1\n", "line 2, column 5 holds 'i' where r must stand"),
        (b"w1i0r1\nw10ir1\n", "line 2, column 3 holds '0' where an instruction"),
        (b"w1i0r1\nw1iir1\n", "line 2, column 4 holds 'i' where a bit"),
        (b"w1i0r1\r\nw1i0r1\nw1i0r1\r\n", "line 2 and line 1 end differently"),
        (b"w1i0r1\nw1i0r1\r\n", "line 2 and line 1 end differently"),
    ],
)
def test_bad_file(tmp_path, content, complaint):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    expected = f"task.files.sparse: {re.escape(str(path))}.*{re.escape(complaint)}"
    with pytest.raises(ValueError, match=expected):
        from_file(path)


def test_missing_file_and_wrong_split(tmp_path):
    with pytest.raises(
        ValueError, match=r"task\.files\.sparse names .*No such file.*give the path"
    ):
        from_file(tmp_path / "absent.txt")
    with pytest.raises(ValueError, match=r"files\.sparce is not a split: did you mean sparse\?"):
        from_file(tmp_path / "absent.txt", split="sparce")


def test_large_file(tmp_path):
    """50 MB are checked and read without being held; an error far inside is found."""
    rng = generator(0)
    batch = FlipFlop(splits={}, length=512, p_ignore=0.8).sample(rng, 1000)
    numbers = np.concatenate([batch.tokens, batch.targets[:, -1:]], axis=1)
    text = np.frombuffer(b"wri01", dtype=np.uint8)[numbers]
    rows = np.concatenate([text, np.full((1000, 1), ord("\n"), dtype=np.uint8)], axis=1).tobytes()
    path = tmp_path / "large.txt"
    path.write_bytes(rows * 100)
    start = time.perf_counter()
    stored = from_file(path).stored("sparse")
    assert time.perf_counter() - start < 3
    assert len(stored) == 100_000
    np.testing.assert_array_equal(stored.take(np.array([99_001])).tokens, batch.tokens[1:2])
    with path.open("r+b") as file:
        file.seek(77_777 * 513 + 100)
        file.write(b"?")
    with pytest.raises(ValueError, match="line 77778, column 101 holds '\\?'"):
        from_file(path)


def test_a_file_has_a_length(tmp_path):
    path = tmp_path / "sequences.txt"
    path.write_text("w1i0i1r1\n")
    task = FlipFlop(splits={}, length=8, p_ignore=0.5, files={"train": str(path)})
    longer = task.at_length(31)
    assert longer.sample(generator(7), 4).tokens.shape == (4, 31)
    assert longer.stored("train") is None
