"""text against slices of the whole file, which here fits into memory."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program import Here, assert_refused

from pe_lab.core.errors import MachineError, RunError, UsageError
from pe_lab.core.rng import generator
from pe_lab.core.task import TRAIN
from pe_lab.tasks import text_file
from pe_lab.tasks.text import Text
from pe_lab.train.batches import TrainData, evaluation_set
from pe_lab.train.plan import build_task

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
    characters = [chr(code) for code in task._text.alphabet]
    spelt = [[characters[i] for i in row] for row in batch.tokens]
    answers = [[characters[i] for i in row] for row in batch.targets]
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


def test_a_file_is_read_once(tmp_path, monkeypatch):
    task = text(tmp_path / "t", PLACES)
    monkeypatch.setattr(text_file, "hashlib", None)
    assert task.split("in_domain").at_length(4).contents() == task.contents()
    os.utime(tmp_path / "t", (1, 1))
    with pytest.raises(AttributeError):
        task.at_length(4)


def test_a_file_that_changes_under_a_run(tmp_path):
    task = text(tmp_path / "t", PLACES)
    read = task._text
    (tmp_path / "t").write_text(PLACES + "!")
    with pytest.raises(RunError, match="was changed while the run read it"):
        read.windows(np.array([0]), 4)
    (tmp_path / "t").unlink()
    with pytest.raises(MachineError, match="cannot be read any more"):
        read.windows(np.array([0]), 4)


def test_drawing(load, drawn):
    words, scored, answers = drawn(load("text"))
    assert words[1:] == answers
    assert len(scored) == len(answers)


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
        (b"", {}, r"task\.file=\S*t is empty; give a text file"),
        (b"abc\xffdef" * 9, {}, r"not UTF-8: byte 3 is 0xff \(invalid start byte\); .*unit=bytes"),
        (b"a" * 5000 + b"\xe2\x9c", {}, r"not UTF-8: byte 5000 is 0xe2 \(unexpected end of data\)"),
        (PLACES[:30], {}, r"window of 9 characters does not fit the test part of .* has 8 of 30"),
        (PLACES[:30], {"test_share": 0.75}, r"9 characters .*training part .* has 8 of 30"),
        (PLACES, {"splits": {"x": {"length": 26}}}, r"27 characters .*test part .* has 26 of 104"),
        (PLACES, {"splits": {"x": {"unit": "bytes"}}}, r"split x cannot change unit"),
        (PLACES, {"period": 9}, r"task\.period=9 is more than task\.length=8"),
        (PLACES, {"loss_on": "all"}, r"task\.loss_on=all has no effect on text"),
        (PLACES, {"part": "test", "splits": {"x": {}}}, r"task\.part=test .*drop it"),
    ],
)
def test_what_cannot_be(tmp_path, content, keys, complaint):
    with pytest.raises(ValueError, match=complaint):
        text(tmp_path / "t", content, **keys)


def test_a_repeated_window_needs_no_more_than_its_period(tmp_path):
    splits = {"repeated_x8": {"length": 64, "period": 8}}
    assert text(tmp_path / "t", PLACES[:36], splits=splits).evaluated() == [
        "in_domain",
        "repeated_x8",
    ]


def test_a_split_of_the_wrong_type_is_refused_by_its_key(load):
    section = {
        "_target_": "pe_lab.tasks.text.Text", "file": None, "unit": "characters", "length": 8,
        "period": None, "test_share": 0.1, "splits": {"x": {"length": "far"}},
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"^task\.splits\.x\.length=far is not allowed"):
        build_task(section)


def test_a_file_without_an_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match=rf"task\.file={path} is not a regular file"):
            text_file.read_text("task.file", str(path), "bytes")


@pytest.mark.parametrize(
    ("kind", "told"),
    [("missing", "cannot be read (No such file or directory)"), ("folder", "is a folder")],
)
def test_bad_files_leave_nothing_behind(here: Here, tmp_path: Path, kind: str, told: str) -> None:
    path = tmp_path / "book.txt"
    if kind == "folder":
        path.mkdir()
    assert_refused(here("task=text", "pe=none", f"task.file={path}"), told, str(path))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["characters", "bytes"])
def test_a_gigabyte_is_not_held(tmp_path: Path, unit: str) -> None:
    """Gone through, and windows of both ends read, with 200 MB of address space to spare."""
    path = tmp_path / "big.txt"
    piece = ("Ein Text, größer als der Speicher. ✓\n" * 32_768).encode()
    with path.open("wb") as file:
        for _ in range(2**30 // len(piece) + 1):
            file.write(piece)
    code = f"""
import resource
from pathlib import Path
from pe_lab.core.rng import generator
from pe_lab.tasks.text import Text
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20,) * 2)
task = Text(file={str(path)!r}, unit={unit!r}, length=128, period=None, test_share=0.1, splits={{}})
for part in (task, task.split("in_domain")):
    batch = part.sample(generator(0), 512)
    assert batch.tokens.shape == (512, 128)
spelt = "".join(task.vocab[i] for i in batch.tokens[0])
print(task._text.length, spelt)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    length, spelt = done.stdout.split()
    size = path.stat().st_size
    assert int(length) == (size if unit == "bytes" else size // len(piece) * len(piece.decode()))
    if unit == "characters":
        assert "größer␣als␣der" in spelt
