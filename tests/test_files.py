"""Files are written whole or not at all, rows come back exactly, and no stranger's code runs."""

import json
import math
import multiprocessing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pe_lab.core.errors import RunError
from pe_lab.core.files import read_yaml, replace_file, write_output
from pe_lab.store.run_folder import RunFolder


def _write(path: Path, letter: bytes, times: int) -> None:
    for _ in range(times):
        replace_file(path, letter * 20_000)


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    replace_file(path, b"a" * 20_000)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path, x, 60)) for x in (b"a", b"b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        content = path.read_bytes()
        assert content in (b"a" * 20_000, b"b" * 20_000)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]


def write_rows(folder: RunFolder, rows: list[dict[str, Any]]) -> tuple[int, str]:
    folder.cut_rows()
    for row in rows:
        folder.add_row(row)
    return folder.mark_rows()


def test_floats_come_back_exactly_and_every_line_is_json(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    floats = [0.1, 1 / 3, math.pi * 1e-300, 5e-324, -0.0, 2.0**53 + 2, 1e22]
    rows = [{"step": step, "train/loss": value} for step, value in enumerate(floats)]
    assert write_rows(folder, rows)[0] == folder.metrics.stat().st_size
    assert [row["train/loss"].hex() for row in folder.rows()] == [f.hex() for f in floats]

    write_rows(folder, [{"step": 1, "a": math.nan, "b": -math.inf, "c": None}])
    row = {"step": 1, "a": None, "b": None, "c": None}
    assert json.loads(folder.metrics.read_text(), parse_constant=pytest.fail) == row


def test_a_resumed_run_cuts_back_to_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = [{"step": step, "train/loss": 1.0} for step in range(5)]
    mark = write_rows(folder, rows[:2])
    with folder.metrics.open("ab") as file:
        file.write(b'{"step": 2, "train/loss": 1.0}\n{"step": 5, "tra')

    folder.cut_rows(*mark)
    assert folder.mark_rows() == mark
    folder.add_row({"step": 2, "train/loss": 2.0})
    assert folder.rows() == [*rows[:2], {"step": 2, "train/loss": 2.0}]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    # A crash of the machine can leave zeros where the last row was to be.
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}\n\0\0\0\0')
    assert RunFolder(tmp_path).rows() == [{"step": 1}, {"step": 2}]


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written \(No space left"):
        folder.add_row({"step": 1})


def test_an_output_in_the_way_of_which_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match=r"file/x\.json cannot be written \(File exists\): make room"
    ):
        write_output(tmp_path / "file" / "x.json", b"")


def test_an_output_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_output(tmp_path / "x.json", b"old")
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(RunError, match="No space left on device"):
        write_output(tmp_path / "x.json", b"new")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_a_merged_mapping_is_merged_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "of:\n  a: &a {<<: {fits: 1, n: 3}, fits: 2}\nb: {<<: *a, n: 4}\n"
    )
    assert read_yaml(tmp_path / "a.yaml")["b"] == {"fits": 2, "n": 4}


@pytest.mark.parametrize("keep", [13, 10_000])
def test_a_file_that_is_not_the_checkpoints_is_refused_and_left_alone(
    tmp_path: Path, keep: int
) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_bytes(b'{"step": 1}\n')
    with pytest.raises(RunError, match=rf"begin with the {keep} bytes.*force=true"):
        folder.cut_rows(keep)
    assert folder.metrics.read_bytes() == b'{"step": 1}\n'
