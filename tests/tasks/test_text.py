"""text against slices of the whole file, which here fits into memory."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program import assert_refused

from pe_lab.core.errors import RunError
from pe_lab.core.rng import generator
from pe_lab.core.task import TRAIN
from pe_lab.tasks import text_file
from pe_lab.tasks.text import Text
from pe_lab.train.batches import TrainData, evaluation_set

# Every character another one, of one to four bytes: a token tells its place.
PLACES = "".join(chr(code) for start in (0x61, 0xA1, 0x4E00, 0x1F300) for code in
                 range(start, start + 26))  # fmt: skip


def text(path, content, **keys):
    """The task on a new file."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    plain = {"unit": "characters", "length": 8, "period": None, "test_share": 0.25, "splits": {}}
    return Text(file=str(path), **(plain | keys))


def words(task, batch):
    """Each sequence as the text it was."""
    spelt, answers = (
        [[chr(task._text.alphabet[i]) for i in row] for row in part]
        for part in (batch.tokens, batch.targets)
    )
    assert [row[1:] for row in spelt] == [row[:-1] for row in answers]
    assert batch.scored.all()
    return ["".join([*row, answer[-1]]) for row, answer in zip(spelt, answers, strict=True)]


def test_parts_and_windows(tmp_path):
    splits = {"long": {"length": 16}, "repeated": {"length": 20, "period": 8}}
    task = text(tmp_path / "t", PLACES, splits=splits)
    trained = words(task, TrainData(task, 0, 2000).batch(0))
    assert {row[0] for row in trained} == set(PLACES[: 78 - 8])
    assert all(row in PLACES[:78] for row in trained)
    in_domain = words(task, evaluation_set(task, "in_domain", 99))
    assert sorted(in_domain, key=PLACES.index) == [PLACES[78:87], PLACES[87:96]]
    assert words(task, evaluation_set(task, "long", 99)) == [PLACES[78:95]]
    repeated = words(task, evaluation_set(task, "repeated", 99))
    tiles = [PLACES[78:86], PLACES[86:94], PLACES[94:102]]
    assert sorted(repeated, key=lambda row: PLACES.index(row[0])) == [
        tile * 2 + tile[:5] for tile in tiles
    ]
    assert len(evaluation_set(task, "repeated", 2)) == 2


@given(
    content=st.text(st.sampled_from("ab \n\té✓𝄞"), min_size=1, max_size=120),
    block=st.integers(1, 9),
    at_once=st.integers(1, 40),
    unit=st.sampled_from(["characters", "bytes"]),
)
def test_a_window_is_a_slice(tmp_path_factory, content, block, at_once, unit):
    """Whatever the blocks of the index and the pieces that are read."""
    path = tmp_path_factory.mktemp("text") / "t"
    path.write_bytes(content.encode())
    whole = list(content) if unit == "characters" else [bytes([b]) for b in content.encode()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_file, "BLOCK", block)
        patch.setattr(text_file, "READ_AT_ONCE", at_once)
        read = text_file.read_text("task.file", str(path), unit)
        code = ord if unit == "characters" else (lambda byte: byte[0])
        assert read.length == len(whole)
        assert read.alphabet == tuple(sorted({code(c) for c in whole}))
        assert len(set(read.names)) == len(read.alphabet)
        length = min(7, len(whole))
        starts = np.arange(len(whole) - length + 1)
        for start, row in zip(starts, read.windows(starts, length), strict=True):
            expected = [code(c) for c in whole[start : start + length]]
            assert [read.alphabet[i] for i in row] == expected
    if read.offsets is not None:
        assert len(read.offsets) == -(-len(content) // block)


def test_bytes(tmp_path):
    task = text(tmp_path / "t", b"\xff\x00 a\xe2" * 20, unit="bytes", length=4)
    assert task.vocab == ("\\x00", "␣", "a", "\\xe2", "\\xff")
    assert set(words(task, task.sample(generator(0), 50))) == {
        ("\xff\x00 a\xe2" * 2)[i : i + 5] for i in range(5)
    }


def test_the_digest_follows_the_file(tmp_path):
    path = tmp_path / "t"
    task = text(path, PLACES)
    size, digest = len(PLACES.encode()), hashlib.sha256(PLACES.encode()).hexdigest()
    assert task.contents() == {"text": f"{size} bytes, sha256 {digest}"}
    assert text(tmp_path / "other", PLACES[::-1]).contents() != task.contents()


def test_a_file_that_changes_under_a_run(tmp_path):
    task = text(tmp_path / "t", PLACES)
    (tmp_path / "t").write_text(PLACES + "!")
    with pytest.raises(RunError, match="was changed while the run read it"):
        task._text.windows(np.array([0]), 4)


def test_repeated_windows(load):
    task = load("text")
    assert task.split(TRAIN) is task
    repeated = task.split("repeated_x2").at_length(200)
    rows = words(repeated, repeated.sample(generator(0), 5))
    assert rows == [(row[:32] * 7)[:201] for row in rows]
    # As short as a period there is nothing to repeat.
    assert task.split("repeated_x2").at_length(32) == task.split("in_domain")


@pytest.mark.parametrize(
    ("content", "keys", "complaint"),
    [
        (b"", {}, "is empty"),
        (b"abc\xffdef" * 9, {}, "not UTF-8: byte 3 is 0xff"),
        (b"a" * 5000 + b"\xe2\x9c", {}, "not UTF-8: byte 5000 is 0xe2"),
        (PLACES[:30], {}, "window of 9 characters does not fit the test part of .* has 8 of 30"),
        (PLACES[:30], {"test_share": 0.75}, "9 characters .*training part .* has 8 of 30"),
        (PLACES, {"splits": {"x": {"length": 26}}}, "27 characters .*test part .* has 26 of 104"),
        (PLACES, {"splits": {"x": {"unit": "bytes"}}}, "split x cannot change unit"),
        (PLACES, {"period": 9}, "9 is more than task.length=8"),
    ],
)
def test_what_cannot_be(tmp_path, content, keys, complaint):
    with pytest.raises(ValueError, match=complaint):
        text(tmp_path / "t", content, **keys)


@pytest.mark.parametrize("there", [False, True])
def test_a_missing_file_or_a_folder_leaves_nothing_behind(here, tmp_path, there):
    if there:
        (tmp_path / "book").mkdir()
    assert_refused(here("task=text", "pe=none", f"task.file={tmp_path / 'book'}"), "book")
    assert not (tmp_path / "runs").exists()
