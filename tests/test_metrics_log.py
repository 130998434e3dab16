"""metrics.jsonl: floats come back exactly, and neither a crash nor a full disk breaks a row."""

import errno
import json
import math
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pe_lab.common.errors import RunError
from pe_lab.store.metrics_log import MetricsLog, read_metrics


def write_rows(path: Path, rows: list[dict[str, Any]]) -> int:
    with closing(MetricsLog(path, 0)) as log:
        for row in rows:
            log.write(row)
        log.sync()
        return log.size


def test_floats_come_back_exactly_and_every_line_is_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    floats = [0.1, 1 / 3, math.pi * 1e-300, 5e-324, -0.0, 2.0**53 + 2, 1e22]
    rows = [{"step": step, "train/loss": value} for step, value in enumerate(floats)]
    size = write_rows(path, rows)
    assert size == path.stat().st_size
    assert [row["train/loss"].hex() for row in read_metrics(path)] == [f.hex() for f in floats]

    write_rows(path, [{"step": 1, "a": math.nan, "b": -math.inf, "c": None}])
    strict = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert strict == {"step": 1, "a": None, "b": None, "c": None}


def test_a_resumed_run_cuts_back_to_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "train/loss": 1.0} for step in range(5)]
    keep = write_rows(path, rows[:2])
    with path.open("ab") as file:
        file.write(b'{"step": 2, "train/loss": 1.0}\n{"step": 5, "tra')

    with closing(MetricsLog(path, keep)) as log:
        assert log.size == keep == path.stat().st_size
        log.write({"step": 2, "train/loss": 2.0})
    assert read_metrics(path) == [*rows[:2], {"step": 2, "train/loss": 2.0}]


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsLog(path, 0)) as log:
        assert log.size == 0
    write_rows(path, [{"step": 3}])
    MetricsLog(path, 0).close()
    assert path.read_bytes() == b""


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    # A crash of the machine can leave zeros where the last row was to be.
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n\0\0\0\0')
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]


def test_a_broken_line_before_the_last_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"line 2 .*force=true"):
        read_metrics(path)


@pytest.mark.parametrize("keep", [1, 5, 13, 10_000])
def test_a_file_that_is_not_the_checkpoints_is_refused_and_left_alone(
    tmp_path: Path, keep: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n')
    with pytest.raises(RunError, match=rf"12 bytes.* {keep} bytes.*force=true"):
        MetricsLog(path, keep)
    assert path.read_bytes() == b'{"step": 1}\n'


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match=r"file/metrics.jsonl cannot be written \(Not a directory\): .*runs_dir"
    ):
        MetricsLog(tmp_path / "file" / "metrics.jsonl", 0)


@pytest.fixture
def small_disk(disk: Callable[[str], Path]) -> Path:
    return disk("64k")


def test_a_full_disk_is_one_sentence_and_leaves_whole_rows(small_disk: Path) -> None:
    path = small_disk / "metrics.jsonl"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 40_000)
    with closing(MetricsLog(path, 0)) as log:

        def fill() -> None:
            for step in range(1000):
                log.write({"step": step, "x" * 100: 1.0})

        with pytest.raises(
            RunError,
            match=r"metrics.jsonl cannot be written \(No space left .*: make room",
        ):
            fill()
        assert log.size == path.stat().st_size
        written = len(read_metrics(path))
        filler.unlink()
        log.write({"step": written})
    assert [row["step"] for row in read_metrics(path)] == list(range(written + 1))
    assert written > 50


def test_a_row_half_written_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"

    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.room = file, 7

        def write(self, data: bytes) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written, self.room = self.file.write(data[: self.room]), 0
            return int(written)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    with closing(MetricsLog(path, 0)) as log:
        log.write({"step": 1})
        monkeypatch.setattr(log, "_file", Full(log._file))
        with pytest.raises(RunError, match="No space left"):
            log.write({"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n'
